// What went wrong with an answer, in the reader's language: answers store a code and its parameters.
import { number, t } from "./i18n.js";

// code: word. Their parameters are the error's other fields.
const WORDS = {
  request_timeout: "error_late",
  queue_full: "error_busy",
  too_many_answers: "error_busy",
  model_not_found: "error_no_model",
  no_chat_template: "no_template",
  memory_shortage: "error_memory",
  models_busy: "error_memory",
  engine_failed: "error_engine",
  model_unusable: "error_unusable",
  internal_error: "error_internal",
  answer_failed: "error_internal",
  too_large: "error_too_large",
  not_written: "error_not_written",
  no_question: "gone",
  cannot_see: "error_cannot_see",
  image_missing: "error_image_missing",
};

/** A sentence for an error: a code and its parameters, or what an older page stored as a sentence. */
export function errorText(error) {
  if (typeof error !== "object" || error === null) return String(error ?? "");
  const { code, detail } = error;
  if (code === "context_length_exceeded") {
    const values = { tokens: number(error.tokens), context: number(error.context) };
    return error.tokens ? t("error_context", values) : t("error_context_more", values);
  }
  if (Object.hasOwn(WORDS, code)) return t(WORDS[code], error);
  return detail ? String(detail) : t("error_code", { code });
}

/** An error of a request, as it is stored with an answer. */
export const storedError = ({ code, message, fields }) => ({ code: code || "refused", ...(message ? { detail: String(message).slice(0, 1000) } : {}), ...fields });
