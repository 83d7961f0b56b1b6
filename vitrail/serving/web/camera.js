// A photo: by the phone's own camera where there is one to ask, else by the browser's.
import { find, part } from "./elements.js";
import { say } from "./words.js";

export function startCamera({ choose, tell }) {
  const button = find("photograph"),
    dialog = find("camera"),
    video = part(dialog, "video");
  const phone = matchMedia("(pointer: coarse)").matches,
    asks = Boolean(navigator.mediaDevices?.getUserMedia);
  let stream = null;
  button.hidden = !phone && !asks;

  button.addEventListener("click", async () => {
    if (phone) return find("camera-file").click();
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch {
      return tell(say("camera.refused"));
    }
    video.srcObject = stream;
    return dialog.showModal();
  });
  // However the dialog was closed, the camera goes off.
  dialog.addEventListener("close", () => {
    stream?.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
  });
  part(dialog, "cancel").addEventListener("click", () => dialog.close());
  part(dialog, "take").addEventListener("click", () => {
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: video.videoWidth, height: video.videoHeight });
    if (!canvas.width) return;
    canvas.getContext("2d").drawImage(video, 0, 0);
    dialog.close();
    canvas.toBlob((blob) => choose(blob), "image/jpeg", 0.92);
  });
}
