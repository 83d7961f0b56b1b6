"""The numbers that Prometheus reads at /metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_METHODS = frozenset(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"))


class Metrics:
    """The counters of one server, in a registry of their own: two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "vitrail_requests", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "vitrail_request_seconds", "From the headers to the answer", ["route"], buckets=_SECONDS, registry=registry
        )
        self.in_flight = Gauge("vitrail_requests_in_flight", "Requests not answered yet", registry=registry)
        self.batch_sizes = Histogram(
            "vitrail_batch_size", "Images run at once", ["model", "what"], buckets=_SIZES, registry=registry
        )
        self.compute = Counter(
            "vitrail_compute_seconds", "Time spent running models", ["model", "what"], registry=registry
        )
        self.rejected = Counter(
            "vitrail_rejected", "Requests refused, by the error's code", ["code"], registry=registry
        )
        self.ready = Gauge("vitrail_model_ready", "1 where a model answers", ["model"], registry=registry)
        self.queue = Gauge("vitrail_queue_depth", "Images waiting or worked on", registry=registry)

    def watch_queue(self, depth: Callable[[], int]) -> None:
        """Sets the function that is asked how many images are pending, whenever the metrics are read."""
        self.queue.set_function(depth)

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts one request that was answered with `status` after `seconds`."""
        self.requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        return generate_latest(self.registry)
