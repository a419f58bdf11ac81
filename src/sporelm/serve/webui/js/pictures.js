// The pictures of a message: small in the conversation, and large in a dialog.
import { by, el, iconButton } from "./dom.js";
import { picture } from "./images.js";
import { t } from "./i18n.js";

/** What a picture is called: its name, or its place. */
const called = ({ name }, index, count) => name || t("picture_n", { n: index + 1, count });

const shows = new WeakMap(); // node -> what fills it
const inSight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    inSight.unobserve(target);
    shows.get(target)?.();
  }
}, { rootMargin: "600px" });

function fill(button, image, { id }) {
  Promise.resolve(picture(id)).then(({ url }) => { image.src = url; }).catch(() => {
    button.classList.add("missing");
    button.replaceChildren(t("picture_missing"));
    button.disabled = true;
  });
}

/** The buttons that show the pictures of a message, which are read once they come into sight. */
export function pictureButtons(images) {
  return images.map((entry, index) => {
    const name = called(entry, index, images.length);
    const image = el("img", { alt: "", width: entry.width, height: entry.height, decoding: "async" });
    const button = el("button", {
      type: "button", class: "picture", title: name, aria: { label: t("enlarge", { name }), haspopup: "dialog" },
      onclick: () => enlarge(images, index, button),
    }, image);
    shows.set(button, () => fill(button, image, entry));
    inSight.observe(button);
    return button;
  });
}

/** Show one picture large; the arrows lead to the others of its message. */
function enlarge(images, first, opener) {
  const dialog = by("viewer");
  let index = first;
  const title = el("h1", { id: "viewer-title", dir: "auto" });
  const image = el("img", { alt: "" });
  const turn = (step) => { index = (index + step + images.length) % images.length; draw(); };
  const arrows = images.length > 1 ? [
    iconButton("left", t("previous_picture"), () => turn(-1)), iconButton("right", t("next_picture"), () => turn(1)),
  ] : [];
  function draw() {
    const entry = images[index];
    const name = called(entry, index, images.length);
    title.textContent = images.length > 1 ? `${name} (${index + 1}/${images.length})` : name;
    image.alt = name;
    image.removeAttribute("src");
    Promise.resolve(picture(entry.id)).then(({ url }) => { if (images[index] === entry) image.src = url; }).catch(() => {
      title.textContent = t("picture_missing");
    });
  }
  const keys = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || images.length < 2) return;
    event.preventDefault();
    turn(step);
  };
  draw();
  dialog.replaceChildren(
    el("div", { class: "dialog-head" }, title, el("span", { class: "row" }, arrows, iconButton("close", t("close"), () => dialog.close(), { autofocus: true }))),
    image);
  dialog.addEventListener("keydown", keys);
  dialog.addEventListener("close", () => { dialog.removeEventListener("keydown", keys); opener.focus({ preventScroll: true }); }, { once: true });
  dialog.showModal();
}

export function startPictures() {
  by("viewer").addEventListener("click", (event) => { if (event.target === by("viewer")) by("viewer").close(); });
}
