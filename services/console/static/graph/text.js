/* Texts that fit: SVG neither wraps nor shortens, so the graph measures. */

let context = null;
const widths = new Map();
const KEPT_MAX = 20000;

/** Width of a text in px, in the page's font at 12 or 13 px. */
export function textWidth(text, size = 12, bold = false) {
  const key = `${size}${bold ? 'b' : ''}|${text}`;
  const known = widths.get(key);
  if (known !== undefined) return known;
  if (!context) context = document.createElement('canvas').getContext('2d');
  const family = getComputedStyle(document.body).fontFamily || 'sans-serif';
  context.font = `${bold ? '600 ' : ''}${size}px ${family}`;
  const width = context.measureText(text).width;
  if (widths.size >= KEPT_MAX) widths.clear();
  widths.set(key, width);
  return width;
}

/** The text, shortened with an ellipsis where it is wider than `width` px. */
export function shortened(text, width, size = 12, bold = false) {
  if (textWidth(text, size, bold) <= width) return text;
  let low = 0;
  let high = text.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (textWidth(`${text.slice(0, middle)}…`, size, bold) <= width) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low).trimEnd()}…`;
}

/** The first of texts, from long to short, that fits; the shortest is shortened where none does. */
export function fitting(texts, width, size = 12, bold = false) {
  for (const text of texts) if (textWidth(text, size, bold) <= width) return text;
  return texts.length ? shortened(texts[texts.length - 1], width, size, bold) : '';
}
