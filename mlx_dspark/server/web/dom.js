/*
 * Small things the views share: prompts that grow and send, following a stream, speaking to screen readers.
 */

const SAMPLES = [
  "Write a Python function for the n-th Fibonacci number.",
  "There are 3 tickets in each jar. How many tickets are there in 6 jars?",
  "Give me a sentence with the word river.",
];

/** Say something to screen readers, which do not read along with the stream. */
export function announce(text) {
  document.getElementById("status").textContent = text;
}

/** The beginning of a text, on one line. */
export function oneLine(text) {
  return text.replace(/\s+/g, " ").trim().slice(0, 300);
}

/** Change what a scroller holds; keep its end in view if it was. */
export function follow(scroller, change) {
  const atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
  change();
  if (atEnd) scroller.scrollTop = scroller.scrollHeight;
}

/** Enter or the form's button sends the text; the field is emptied if `send` took it and `keep` is off. */
export function prompt(form, field, send, keep = false) {
  const submit = () => {
    const text = field.value.trim();
    if (text && send(text) && !keep) field.value = "";
    grow(field);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  field.addEventListener("input", () => grow(field));
}

/** Buttons that fill a prompt field. */
export function samples(list) {
  const field = document.getElementById(list.dataset.for);
  for (const text of SAMPLES) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sample";
    button.textContent = text;
    button.addEventListener("click", () => {
      field.value = text;
      grow(field);
      field.focus();
    });
    list.append(button);
  }
}

function grow(field) {
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 220)}px`;
}
