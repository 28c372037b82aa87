// Links from a number to its history: every number opens it.
import { html } from './html.js';
import { href, route } from './route.js';

export const CHARTS_MAX = 6;

// The `charts` parameter: charts are apart by `,`, the lines of one by `;`; a line is
// INSTANCE:PATH, with the path of a leaf below amps/ in encoded steps.
export const encodeCharts = (charts) =>
  charts
    .map((lines) =>
      lines.map(([instance, path]) => `${encodeURIComponent(instance)}:${path}`).join(';'),
    )
    .join(',');

export function decodeCharts(text) {
  if (!text) return [];
  return text
    .split(',')
    .slice(0, CHARTS_MAX)
    .map((chart) =>
      chart
        .split(';')
        .map((line) => {
          const at = line.indexOf(':');
          return at < 1 ? null : [decodeURIComponent(line.slice(0, at)), line.slice(at + 1)];
        })
        .filter(Boolean),
    )
    .filter((lines) => lines.length);
}

// The history of lines [[instance, path], …] in one chart.
export const historyOf = (lines) => href('history', [], { charts: encodeCharts([lines]) });

// The history of one or several leaves of one instance, in one chart.
export const historyHref = (instance, paths) =>
  historyOf([paths].flat().map((path) => [instance, path.replace(/^amps\//, '')]));

// A number that opens its history: `path` of one instance, or `lines` of several.
export function Number({ instance, path, lines, label = '', children }) {
  const of = lines ?? (instance && path ? [[instance, path]] : null);
  if (!of?.length) return children;
  // The address holds the range of the page, which may change.
  void route.value;
  return html`<a class="to-history" href=${historyOf(of.slice(0, CHARTS_MAX))}
    title=${`History${label && ` of ${label}`}`}>${children}</a>`;
}
