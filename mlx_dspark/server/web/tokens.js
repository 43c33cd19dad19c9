/*
 * Writes tokens as coloured spans, and lines between ``` fences as blocks of code.
 * Only ever sets textContent, and adds or drops no character: the element's text is the text it was given.
 */

const FENCE = /^ {0,3}```/;

export class TokenText {
  constructor(root) {
    this.root = root;
    this.length = 0;
    this.code = false;
    this.startLine();
    this.block = null;
  }

  /** A token's text, or a piece of text whose origin is not known ("plain"). */
  push(text, origin) {
    this.length += text.length;
    for (const part of text.split(/(?<=\n)/)) {
      this.write(part, origin);
      if (part.endsWith("\n")) this.endLine();
    }
  }

  /** A piece within one line. White space that a line begins with stays uncoloured. */
  write(part, origin) {
    const space = this.line.trim() ? "" : part.match(/^\s*/)[0];
    if (space) this.append(space, "plain");
    if (space !== part) this.append(part.slice(space.length), origin);
  }

  append(text, origin) {
    const span = document.createElement("span");
    span.className = origin;
    span.textContent = text;
    this.line += text;
    this.spans.push(span);
    if (this.block || text.trim()) {
      this.block ??= this.newBlock();
      this.block.append(span);
    } else {
      span.className = "blank"; // there, but no empty lines in front of a block
      this.root.append(span);
    }
  }

  endLine() {
    if (FENCE.test(this.line)) {
      for (const span of this.spans) span.classList.add("fence");
      this.code = !this.code;
      this.code ? this.openCode() : (this.block = null);
    }
    this.startLine();
  }

  /** The fence's line, already written as prose, becomes the first line of a block of code. */
  openCode() {
    const before = this.block;
    this.block = this.newBlock();
    this.block.append(...this.spans);
    if (!before.hasChildNodes()) before.remove();
  }

  startLine() {
    this.line = "";
    this.spans = [];
  }

  newBlock() {
    const block = document.createElement(this.code ? "pre" : "div");
    if (this.code) block.tabIndex = 0;
    this.root.append(block);
    return block;
  }
}
