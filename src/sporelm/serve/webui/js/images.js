// Pictures: made small enough to be sent, kept on the server under the hash of their bytes, and read from there to be shown.
// The API key is in a header, which an <img> does not send: so a picture is read with `fetch` and shown from a blob.
import { ask, askBlob } from "./api.js";
import { t } from "./i18n.js";

const PATH = "api/ui/images";
const LONGEST = 2048; // pixels of a side
const MAX_BYTES = 4_000_000; // of a file that is sent as it is
const AS_IT_IS = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const QUALITY = 0.9; // of JPEG
const known = new Map(); // id -> {blob, url}, or a promise of that

const encoded = (canvas, type) => new Promise((resolve) => { canvas.toBlob(resolve, type, QUALITY); });

/** A picture on white, no side longer than `longest`. */
function drawn(bitmap, longest) {
  const scale = Math.min(1, longest / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.fillStyle = "#fff"; // as the server does with what is transparent
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** A file's picture as it is sent: {blob, width, height}. Large ones are scaled down, upright. Throws where it is none. */
export async function prepared(file) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" }).catch(() => null); // turned as its EXIF says
  if (!bitmap) throw new Error(t("no_picture", { name: file.name }));
  try {
    const { width, height } = bitmap;
    const moves = file.type === "image/gif"; // whose frames a canvas would lose
    if (AS_IT_IS.includes(file.type) && file.size <= MAX_BYTES && (moves || Math.max(width, height) <= LONGEST)) {
      return { blob: file, width, height };
    }
    const canvas = drawn(bitmap, LONGEST);
    const size = { width: canvas.width, height: canvas.height };
    const sharp = ["image/png", "image/bmp"].includes(file.type) ? await encoded(canvas, "image/png") : null;
    const blob = sharp && sharp.size <= MAX_BYTES ? sharp : await encoded(canvas, "image/jpeg");
    if (!blob) throw new Error(t("no_picture", { name: file.name }));
    return { blob, ...size };
  } finally {
    bitmap.close();
  }
}

/** Keep a picture on the server; its id. Throws an ApiError. */
export async function upload(blob) {
  const { id } = await ask("POST", PATH, { body: blob, raw: true, more: { "content-type": blob.type } });
  if (!known.has(id)) known.set(id, { blob, url: URL.createObjectURL(blob) });
  return id;
}

/** A picture of the server: {blob, url}. Throws an ApiError. */
export function picture(id) {
  if (!known.has(id)) {
    const read = askBlob(`${PATH}/${id}`).then((blob) => {
      const one = { blob, url: URL.createObjectURL(blob) };
      if (known.get(id) === read) known.set(id, one);
      return one;
    });
    read.catch(() => { if (known.get(id) === read) known.delete(id); });
    known.set(id, read);
  }
  return known.get(id);
}

export const imageIds = (data) => [...new Set(data.messages.flatMap(({ images }) => (images ?? []).map(({ id }) => id)))];

/** Forget all pictures but those of some ids. */
export function forget(except = []) {
  for (const [id, one] of known) {
    if (except.includes(id)) continue;
    known.delete(id);
    Promise.resolve(one).then(({ url }) => URL.revokeObjectURL(url)).catch(() => {});
  }
}

/** Keep the pictures of a conversation on the server again, as far as this page has them; whether there were any. */
export async function restore(data) {
  const here = imageIds(data).filter((id) => known.has(id));
  for (const id of here) await upload((await known.get(id)).blob);
  return here.length > 0;
}

/** A picture as a data URL, for a file that holds everything. */
export async function asDataUrl(id) {
  const { blob } = await picture(id);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(blob);
  });
}

/** Keep the pictures of an exported file on the server; the file without them. Throws an ApiError. */
export async function unpacked(bundle) {
  const { images, ...rest } = bundle;
  for (const text of Object.values(images ?? {})) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    await ask("POST", PATH, { body: new Blob([bytes], { type: "image/*" }), raw: true, more: { "content-type": "image/*" } });
  }
  return rest;
}
