// Conversations as Markdown: the branch that is shown, for reading and for other programs. Its pictures are in the same file.
import { date, t } from "./i18n.js";
import { asDataUrl } from "./images.js";
import { path } from "./tree.js";

/** A file's name for a title: letters and digits of any script, the rest is dashes. */
export const fileName = (title, ending) => `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "sporelm"}.${ending}`;

const escaped = (name) => name.replace(/[[\]\\]/g, "\\$&").replace(/\s+/g, " ");

/** References to the pictures of messages, and at the end of the file what they refer to. */
async function pictures(shown) {
  const numbers = new Map(); // id -> number
  const references = shown.map(({ images }) => (images ?? []).map(({ id, name }) => {
    if (!numbers.has(id)) numbers.set(id, numbers.size + 1);
    return `![${escaped(name || t("picture_n", { n: numbers.get(id) }))}][image-${numbers.get(id)}]`;
  }).join(" "));
  const definitions = [];
  for (const [id, place] of numbers) definitions.push(`[image-${place}]: ${await asDataUrl(id)}`);
  return [references, definitions.join("\n")];
}

/** The text of a conversation's shown branch. Throws an ApiError where a picture cannot be read. */
export async function markdownOf(data) {
  const shown = path(data);
  const title = data.title || t("untitled");
  if (data.kind === "completion") return `${shown.map(({ content }) => content).join("")}\n`;
  const head = [`# ${title}`, `*${[date(data.updated ?? Date.now(), { dateStyle: "long" }), data.model].filter(Boolean).join(" · ")}*`];
  if (data.system) head.push(`> ${t("system")}: ${data.system.replace(/\n/g, "\n> ")}`);
  const [references, definitions] = await pictures(shown);
  const turns = shown.flatMap(({ role, content, model }, index) => [
    `## ${t(role === "user" ? "you" : "assistant")}${role === "assistant" && model ? ` (${model})` : ""}`,
    ...[references[index], content.trim()].filter(Boolean),
  ]);
  return `${[...head, ...turns, ...(definitions ? [definitions] : [])].join("\n\n")}\n`;
}
