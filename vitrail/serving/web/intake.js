// How a picture comes in: dropped, pasted, picked, photographed or drawn. It leaves as bytes the server takes.
import { Problem } from "./api.js";
import { startCamera } from "./camera.js";
import { find } from "./elements.js";
import { startPad } from "./pad.js";
import { say } from "./words.js";

/** Pixels along the longer side of a picture made smaller: more than any model looks at. */
const SMALLER = 1600;

/** What the browser can show of it; null for formats that it cannot read, though the server may. */
async function decoded(blob) {
  try {
    return await createImageBitmap(blob);
  } catch {
    return null;
  }
}

/** Bytes within the server's limits: {picture, preview, note}. Only what is too large is changed. */
export async function prepare(blob, limits) {
  const preview = await decoded(blob);
  const tooLarge = blob.size > limits.max_body_bytes || (preview && preview.width * preview.height > limits.max_pixels);
  if (!tooLarge) return { picture: blob, preview, note: "" };
  if (!preview) throw new Problem("too_large");
  const scale = Math.min(1, SMALLER / Math.max(preview.width, preview.height));
  const canvas = document.createElement("canvas");
  Object.assign(canvas, {
    width: Math.max(1, Math.round(preview.width * scale)),
    height: Math.max(1, Math.round(preview.height * scale)),
  });
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.drawImage(preview, 0, 0, canvas.width, canvas.height);
  const picture = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  return { picture, preview, note: say("shrunk") };
}

/** The first picture among what was dropped or pasted; a file of unknown kind is left to the server to judge. */
function firstFile(transfer) {
  const files = [...(transfer?.files ?? [])];
  return files.find((file) => file.type.startsWith("image/")) ?? files[0];
}

async function fromClipboard() {
  for (const item of await navigator.clipboard.read()) {
    const kind = item.types.find((type) => type.startsWith("image/"));
    if (kind) return item.getType(kind);
  }
  return null;
}

/** choose(blob), tell(words): what came in, or why nothing did. wantsDigits(): whether the pad is for white on black. */
export function startIntake({ choose, tell, wantsDigits }) {
  const file = find("file"),
    drop = find("drop");
  const picked = (event) => {
    if (event.target.files[0]) choose(event.target.files[0]);
    event.target.value = ""; // so that the same file can be chosen again
  };
  file.addEventListener("change", picked);
  find("camera-file").addEventListener("change", picked);
  find("pick").addEventListener("click", () => file.click());

  let inside = 0;
  const over = (change) => {
    inside = Math.max(0, inside + change);
    drop.classList.toggle("over", inside > 0);
  };
  document.addEventListener("dragenter", () => over(1));
  document.addEventListener("dragleave", () => over(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    over(-inside);
    const dropped = firstFile(event.dataTransfer);
    if (dropped) choose(dropped);
  });

  document.addEventListener("paste", (event) => {
    const pasted = firstFile(event.clipboardData);
    if (!pasted) return;
    event.preventDefault();
    choose(pasted);
  });
  const paste = find("paste");
  paste.hidden = !navigator.clipboard?.read;
  paste.addEventListener("click", async () => {
    const pasted = await fromClipboard().catch(() => null);
    if (pasted) choose(pasted);
    else tell(say("paste.nothing"));
  });

  startCamera({ choose, tell });
  startPad({ choose, wantsDigits });
}
