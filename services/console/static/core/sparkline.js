// A small line without axes, for tiles and rows. Gaps stay gaps. It is decoration: the number beside
// it and the chart that it links to say the same.
import { html } from './html.js';

export function sparkPath(values, width, height) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return '';
  const top = Math.max(...known);
  const low = Math.min(0, ...known);
  const range = top - low || 1;
  const dx = width / (values.length - 1);
  let found = '';
  let isDown = false;
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      isDown = false;
      return;
    }
    const y = height - 1 - ((value - low) / range) * (height - 2);
    found += `${isDown ? 'L' : 'M'}${(index * dx).toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
  });
  return found;
}

export function Sparkline({ values, width = 120, height = 24 }) {
  const path = sparkPath(values, width, height);
  return html`<svg class="sparkline" viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none"
    aria-hidden="true" focusable="false">
    ${path && html`<path class="spark-line" d=${path} vector-effect="non-scaling-stroke" />`}
  </svg>`;
}
