// Conversations as Markdown: the branch that is shown, for reading and for other programs.
import { date, t } from "./i18n.js";
import { path } from "./tree.js";

/** A file's name for a title: letters and digits of any script, the rest is dashes. */
export const fileName = (title, ending) => `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "sporelm"}.${ending}`;

/** The text of a conversation's shown branch. */
export function markdownOf(data) {
  const shown = path(data);
  const title = data.title || t("untitled");
  if (data.kind === "completion") return `${shown.map(({ content }) => content).join("")}\n`;
  const head = [`# ${title}`, `*${[date(data.updated ?? Date.now(), { dateStyle: "long" }), data.model].filter(Boolean).join(" · ")}*`];
  if (data.system) head.push(`> ${t("system")}: ${data.system.replace(/\n/g, "\n> ")}`);
  const turns = shown.flatMap(({ role, content, model }) => [
    `## ${t(role === "user" ? "you" : "assistant")}${role === "assistant" && model ? ` (${model})` : ""}`,
    content.trim(),
  ]);
  return `${[...head, ...turns].join("\n\n")}\n`;
}
