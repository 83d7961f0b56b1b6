// A sheet to draw on: white on black for models that know digits, a coloured pen on paper for others.
import { find, part } from "./elements.js";

const PAPER = "#f5f1e6",
  INK = "#1f3f8a";

export function startPad({ choose, wantsDigits }) {
  const dialog = find("pad"),
    canvas = part(dialog, "canvas"),
    pen = canvas.getContext("2d");
  let drawing = false;

  const wipe = () => {
    const digits = wantsDigits();
    pen.fillStyle = digits ? "#000" : PAPER;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    Object.assign(pen, {
      strokeStyle: digits ? "#fff" : INK,
      lineWidth: digits ? 46 : 16,
      lineCap: "round",
      lineJoin: "round",
    });
  };
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [
      ((event.clientX - box.left) * canvas.width) / box.width,
      ((event.clientY - box.top) * canvas.height) / box.height,
    ];
  };
  canvas.addEventListener("pointerdown", (event) => {
    drawing = true;
    canvas.setPointerCapture(event.pointerId);
    pen.beginPath();
    pen.moveTo(...place(event));
    pen.lineTo(...place(event));
    pen.stroke();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drawing) return;
    pen.lineTo(...place(event));
    pen.stroke();
  });
  for (const end of ["pointerup", "pointercancel"])
    canvas.addEventListener(end, () => {
      drawing = false;
    });

  find("draw").addEventListener("click", () => {
    wipe();
    dialog.showModal();
  });
  part(dialog, "clear").addEventListener("click", wipe);
  part(dialog, "cancel").addEventListener("click", () => dialog.close());
  part(dialog, "use").addEventListener("click", () => {
    dialog.close();
    canvas.toBlob((blob) => choose(blob), "image/png");
  });
}
