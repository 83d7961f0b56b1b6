"""Runs the rows of a study, several at a time, each in a process of its own, and writes the results."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from vitrail.drawing.page import cards, page, picture, section, text
from vitrail.drawing.page import table as html_table
from vitrail.drawing.plots import both
from vitrail.errors import UserError
from vitrail.io.documents import read_json
from vitrail.io.files import write_bytes
from vitrail.io.progress import progress
from vitrail.studies.study import (
    ERROR,
    RESULT,
    ROW,
    ROWS,
    Study,
    StudyOutcome,
    StudyRow,
    comparison_table,
    conclusion,
    finished,
    folder_of,
    gather,
    points_summary,
    results_csv,
    write_json,
)
from vitrail.training.progress import read_metrics

Tell = Callable[[str], None]
"""Takes one line that a person should read."""
LOG = "log.txt"
"""The file with the output of a row's process."""


class Stopped(Exception):
    """Is raised after Ctrl-C or SIGTERM, when the running rows have saved their state."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def run_study(study: Study, out: Path, jobs: int, tell: Tell) -> StudyOutcome:
    """Runs the rows that are not done yet, then writes the table, the picture and the conclusion.

    Args:
        study: The study.
        out: Its folder; rows that are done there are not run again.
        jobs: The number of rows that run at the same time.
        tell: Is called with each line that a person should read.

    Raises:
        UserError: The folder belongs to something else.
        Stopped: The study was interrupted.
    """
    _prepare(study, out)
    left = [row for row in study.rows if finished(row, out) is None]
    if len(left) < len(study.rows):
        tell(f"{len(study.rows) - len(left)} of {len(study.rows)} rows were done before")
    own = {folder_of(row, out) for row in study.rows}
    if others := sum(path.parent not in own for path in (out / ROWS).glob(f"*/{RESULT}")):
        are = "row of another command is" if others == 1 else "rows of another command are"
        tell(f"{others} {are} in the folder; the results are those of this one alone")
    with progress("trainings", len(left)) as advance:
        _Workers(study, out, max(1, jobs), tell, advance).run(left)
    outcome = gather(study.rows, out)
    write_outcome(study, outcome, out)
    return outcome


def _prepare(study: Study, out: Path) -> None:
    """Checks that the folder is new or belongs to this study with the same data, and marks it as such."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; --out must be a folder")
    stamp = out / "study.json"
    if stamp.is_file():
        before = read_json(stamp)
        if (other := before.get("study")) != study.name:
            raise UserError(f"{out}: holds the study {other}; choose another --out")
        if before.get("fingerprint") != study.fingerprint:
            raise UserError(
                f"{out}: was begun with other data, or another model, of the same name; choose another --out"
            )
    elif out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out}: is in use already, and not by a study; choose another --out")
    rows = [row.name for row in study.rows]
    write_json(stamp, {"study": study.name, "fingerprint": study.fingerprint, "rows": rows})


class _Workers:
    """Runs rows in processes of their own, `jobs` at a time, and ends them when we are told to stop."""

    def __init__(self, study: Study, out: Path, jobs: int, tell: Tell, advance: Callable[[float], None]):
        self.study, self.out, self.jobs, self.tell, self.advance = study, out, jobs, tell, advance
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.lock = threading.Lock()
        self.stopping: list[int] = []
        self.threads = max(1, (os.cpu_count() or 1) // jobs)

    def run(self, left: list[StudyRow]) -> None:
        """Runs these rows and reports each when it has ended; raises Stopped after a signal."""
        done, shown, waiting, running = 0, 0.0, list(left), {}
        # In this order, so that after an error the processes are stopped before the pool waits for them.
        with ThreadPoolExecutor(self.jobs) as pool, self._signals():
            while (waiting or running) and not (self.stopping and not running):
                if not self.stopping:
                    for row in [each for each in waiting if self._ready(each, waiting, running)]:
                        if len(running) < self.jobs:
                            waiting.remove(row)
                            running[pool.submit(self._row, row)] = row
                if not running:
                    break
                ended, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in ended:
                    done += 1
                    self._report(running.pop(future), future, done, len(left))
                reached = done + sum(_share(row, self.out) for row in running.values())
                # A resumed row starts again at its last snapshot; the bar waits until it has caught up.
                self.advance(max(0.0, reached - shown))
                shown = max(shown, reached)
        if self.stopping:
            raise Stopped(self.stopping[0])

    def _ready(self, row: StudyRow, waiting: list[StudyRow], running: dict[Future[int], StudyRow]) -> bool:
        """Tells whether a row can start: one that starts from another's model waits until that has ended, well or
        not."""
        return row.start is None or (row.start not in waiting and row.start not in running.values())

    def _row(self, row: StudyRow) -> int:
        """Runs a row in a process and returns its exit status; why it failed is written to its folder, unless we
        stopped it."""
        folder = folder_of(row, self.out)
        if row.start is not None and finished(row.start, self.out) is None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ERROR).write_text(f"the row it starts from, {row.start.name}, failed\n", encoding="utf-8")
            return 2
        document = {"digest": row.digest, "start": row.start.name if row.start else "", "config": row.config.to_json()}
        write_json(folder / ROW, document)
        (folder / ERROR).unlink(missing_ok=True)  # left by an earlier attempt
        environment = {"OMP_NUM_THREADS": str(self.threads), **os.environ}  # a value set by the user is kept
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-m", "vitrail.studies.worker", str(folder)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # so that Ctrl-C reaches only us, and we pass it on once
            )
            with self.lock:
                self.processes.add(process)
            if self.stopping:
                process.terminate()
            status = process.wait()
            with self.lock:
                self.processes.discard(process)
        if status and not self.stopping and not (folder / ERROR).is_file():
            (folder / ERROR).write_text(f"{_ended(status, folder / LOG)}\n", encoding="utf-8")
        return status

    def _report(self, row: StudyRow, future: Future[int], done: int, total: int) -> None:
        """Says what became of a row, and writes the table so far."""
        status, error = future.result(), folder_of(row, self.out) / ERROR
        if status == 0:
            document = finished(row, self.out)
            assert document is not None
            result = document["result"]
            score = f"{result['top1']:.2%}" if row.measured else f"loss {result['loss']:.4f}"
            write_table(gather(self.study.rows, self.out), self.out)  # so that it can be read before the end
            self.tell(f"[{done}/{total}] {row.name}: {score} in {result['seconds']:.0f} s")
        elif error.is_file():
            self.tell(f"[{done}/{total}] {row.name}: failed: {error.read_text(encoding='utf-8').strip()}")

    @contextmanager
    def _signals(self):
        """Passes Ctrl-C and SIGTERM on to the processes while the block runs."""

        def stop(number: int, _: object) -> None:
            """Notes the signal and ends the processes."""
            self.stopping.append(number)
            with self.lock:
                for process in self.processes:
                    process.terminate()

        try:
            before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # outside the main thread signals are handled by the caller
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if sys.exc_info()[0] is not None:
                for process in list(self.processes):
                    process.terminate()


def _share(row: StudyRow, out: Path) -> float:
    """Returns the share of a training that is done, from the metrics that it has written."""
    records = [each for each in read_metrics(folder_of(row, out) / "run") if each["kind"] == "train"]
    if not records:
        return 0.0
    last, config = records[-1], row.config
    return last["step"] / config.steps if config.steps else last["epoch"] / (config.epochs or 1)


def _ended(status: int, log: Path) -> str:
    """Returns why a process ended that did not report it itself."""
    number = -status if status < 0 else status - 128  # negative from Popen, 128 + number from our own commands
    if number in signal.valid_signals():
        name = signal.Signals(number).name
        memory = ", perhaps because memory ran out: try fewer --jobs" if name == "SIGKILL" else ""
        return f"was ended from outside by {name}{memory}; the same command goes on with it"
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return f"ended with status {status}: {''.join(last)} ({log} has more)"


def _measured(study: Study, outcome: StudyOutcome) -> str:
    """Returns a sentence with the data and the number of test images of the accuracies."""
    sources = ", ".join(dict.fromkeys(row.config.data.source for row in study.rows if row.name not in outcome.failed))
    counts = sorted({result.n for result in outcome.results})
    return f"Top-1 on {' or '.join(f'{count:,}' for count in counts)} test images of {sources}."


def write_table(outcome: StudyOutcome, out: Path) -> None:
    """Writes results.csv."""
    write_bytes(out / "results.csv", results_csv(outcome).encode())


def write_outcome(study: Study, outcome: StudyOutcome, out: Path) -> None:
    """Writes results.csv, plot.png, conclusion.txt and report.html from the results so far."""
    write_table(outcome, out)
    if not outcome.results:
        for name in ("plot.png", "conclusion.txt", "report.html"):
            (out / name).unlink(missing_ok=True)
        return
    sentences = conclusion(study, outcome)
    light, dark = both(lambda theme: study.draw(outcome, theme))
    write_bytes(out / "plot.png", light)
    write_bytes(out / "conclusion.txt", ("\n".join(sentences) + "\n").encode())
    heads, lines = points_summary(outcome)
    compared = comparison_table(study, outcome)
    seconds = sum(each.seconds for each in outcome.results)
    body = [
        f"<p>{text(study.question)}</p>",
        cards(
            [
                (str(len(outcome.results)), "trainings measured", ""),
                (f"{seconds / 60:,.0f}", "minutes of training, all together", ""),
                (str(len(outcome.failed)), "failed", "bad" if outcome.failed else ""),
            ]
        ),
        section(
            "What came out", f"{picture(light, dark, study.title)}{''.join(f'<p>{text(s)}</p>' for s in sentences)}"
        ),
        section(
            "The numbers",
            html_table(heads, lines),
            f"{_measured(study, outcome)} The spread is the standard deviation over the seeds.",
        ),
        section("What was compared", html_table(*compared), "In percentage points.") if compared[1] else "",
        section("Failed", html_table(("row", "reason"), list(outcome.failed.items()))) if outcome.failed else "",
    ]
    style = "picture img { display: block; width: 100%; max-width: 760px; height: auto; margin: 0 auto 14px; }"
    write_bytes(out / "report.html", page(study.title, "".join(body), style).encode())
