// Lines of code, of which only those in sight are drawn.
import { classes, html, useEffect, useLayoutEffect, useRef, useState } from '../core/html.js';
import { exact } from '../core/format.js';

const LINE_PX = 18;
const AROUND = 20;
const LINES_SHOWN = 28;
const HEIGHT_PX_MAX = 12_000_000; // Browsers draw nothing below some 16 million pixels.

// count: lines; line(number): its parts [class, text]; label: what it is.
export function Code({ count, line, label }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const [shown, setShown] = useState(LINES_SHOWN);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => {
      setShown(Math.ceil(entry.contentRect.height / LINE_PX));
    });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    box.current.scrollTop = 0;
    setTop(0);
  }, [line]);
  const heightPx = Math.min(count * LINE_PX, HEIGHT_PX_MAX);
  // Of very many lines a pixel of scrolling is more than a pixel of text.
  const perPx = heightPx > 0 ? count / heightPx : 0;
  const first = Math.max(0, Math.floor(top * perPx) - AROUND);
  const last = Math.min(count, Math.floor(top * perPx) + shown + AROUND);
  const onScroll = () => setTop(box.current.scrollTop);
  const numbers = [];
  for (let number = first; number < last; number += 1) numbers.push(number);
  return html`<div class=${classes('code', count <= LINES_SHOWN && 'code-small')} ref=${box} tabindex="0" role="region"
      aria-label="${label}, ${exact(count)} lines" onScroll=${onScroll}>
    <${Tall} heightPx=${heightPx} topPx=${Math.max(0, top - (top * perPx - first) * LINE_PX)} perPx=${perPx} first=${first}>
      ${numbers.map((number) => html`<div class="code-line" key=${number}
        >${line(number).map(([name, text]) => (name ? html`<span class=${name}>${text}</span>` : text))}${'\n'}</div>`)}
    <//>
  </div>`;
}

function Tall({ heightPx, topPx, children, perPx, first }) {
  const outer = useRef(null);
  const inner = useRef(null);
  useLayoutEffect(() => {
    outer.current.style.height = `${heightPx}px`;
    const exactPx = perPx * LINE_PX <= 1.0001 ? first * LINE_PX : topPx;
    inner.current.style.transform = `translateY(${exactPx}px)`;
  });
  return html`<div class="code-all" ref=${outer}><div class="code-seen" ref=${inner}>${children}</div></div>`;
}
