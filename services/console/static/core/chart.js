// A line chart over time: uPlot, with what it lacks. Beside colour each line has a dash; gaps stay
// gaps; events are marks; the keyboard moves the cursor; a table stands behind it. uPlot positions
// by CSSOM only, so the strict Content-Security-Policy holds.
import { html, useEffect, useMemo, useRef, useState } from './html.js';
import { Table } from './table.js';
import { time as formatTime } from './format.js';
import uPlot from '../vendor/uplot.js';

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 4], [5, 2, 1, 2]];
const HEIGHT = 190;
const MARKS_APART_PX = 14;
const GAP_INTERVALS = 3;
export const SERIES_MAX = DASHES.length;

// A variable's colour as the canvas takes it: the value itself may be light-dark(…), which only a
// property resolves. Kept until the colours change.
let probe = null;
const colours = new Map();

function cssValue(name) {
  const before = colours.get(name);
  if (before) return before;
  if (!probe) {
    probe = document.createElement('span');
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  colours.set(name, found);
  return found;
}

// The interval at which a series has values: the median of the differences.
export function intervalOf(times) {
  if (times.length < 3) return null;
  const apart = [];
  const every = Math.max(1, Math.floor(times.length / 500));
  for (let i = 1; i < times.length; i += every) apart.push(times[i] - times[i - 1]);
  apart.sort((a, b) => a - b);
  return apart[Math.floor(apart.length / 2)];
}

// Puts an unknown value into each gap, so that no line is drawn over it.
export function withGaps(times, values) {
  const interval = intervalOf(times);
  if (interval === null) return [times, values];
  const foundTimes = [];
  const foundValues = [];
  times.forEach((at, i) => {
    if (i && at - times[i - 1] > GAP_INTERVALS * interval) {
      foundTimes.push(times[i - 1] + interval);
      foundValues.push(null);
    }
    foundTimes.push(at);
    foundValues.push(values[i]);
  });
  return [foundTimes, foundValues];
}

function joined(series) {
  const tables = series.map((each) => withGaps(each.times, each.values));
  if (tables.length === 0) return [[]];
  return tables.length === 1 ? tables[0] : uPlot.join(tables);
}

const two = (value) => String(value).padStart(2, '0');

function timeTicks(tz) {
  return (_plot, splits, _axis, _space, increment) => {
    let dayBefore = '';
    return splits.map((at) => {
      const date = new Date(at * 1000);
      const [day, clock, seconds] =
        tz === 'local'
          ? [
              `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`,
              `${two(date.getHours())}:${two(date.getMinutes())}`,
              `:${two(date.getSeconds())}`,
            ]
          : [
              date.toISOString().slice(0, 10),
              date.toISOString().slice(11, 16),
              date.toISOString().slice(16, 19),
            ];
      const isNew = day !== dayBefore;
      dayBefore = day;
      if (increment >= 86400) return day.slice(5);
      const text = increment < 60 ? clock + seconds : clock;
      return isNew ? `${text}\n${day}` : text;
    });
  };
}

// The index of the value nearest to a time.
function nearest(times, at) {
  if (!times.length) return null;
  let low = 0;
  let high = times.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle] < at) low = middle;
    else high = middle;
  }
  return at - times[low] <= times[high] - at ? low : high;
}

// What a series holds at a time: null in a gap. `undefined` only aligns series with one another.
function valueAt(times, values, index) {
  if (index === null) return null;
  for (let apart = 0; apart < 4; apart += 1) {
    for (const i of [index - apart, index + apart]) {
      if (values?.[i] !== undefined) return values[i];
    }
  }
  return null;
}

/*
 title, note: text.  series: [{label, times (s), values, format}], at most six.
 range: {fromS, toS}.  cursor: signal of {s, by} | null, shared by the charts of a page.
 chosenS: the chosen time, drawn as a line.  marks: [{s, text, level, href}].
 onRange(fromS, toS): a range was drawn with the pointer or zoomed by key.
 onChoose(s): a time was clicked, or Enter was pressed.  actions: what stands to the right of the title.
*/
export function Chart({
  title, note, series, range, cursor, chosenS = null, marks = [], onRange, onChoose,
  format, tz = 'utc', actions, empty, height = HEIGHT, id,
}) {
  const box = useRef(null);
  const plot = useRef(null);
  const [width, setWidth] = useState(0);
  const [hidden, setHidden] = useState({});
  const [isTable, setIsTable] = useState(false);
  const [index, setIndex] = useState(null);
  const latest = useRef({});
  const data = useMemo(() => joined(series), [series]);
  latest.current = { onRange, onChoose, chosenS, cursor, data, marks, format, range };
  const times = data[0];
  const isEmpty = !series.some((each) => each.times.length);
  const shape = series.map((each) => each.label).join('\n');

  useEffect(() => {
    if (!box.current) return undefined;
    const seen = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    seen.observe(box.current);
    return () => seen.disconnect();
  }, []);

  useEffect(() => {
    if (!width || !box.current) return undefined;
    const axis = {
      stroke: () => cssValue('--muted'),
      grid: { stroke: () => cssValue('--chart-grid'), width: 1 },
      ticks: { stroke: () => cssValue('--chart-grid'), width: 1, size: 4 },
      font: '12px system-ui, sans-serif',
    };
    const made = new uPlot(
      {
        width,
        height,
        padding: [8, 8, 0, 0],
        legend: { show: false },
        tzDate: (s) =>
          tz === 'local' ? new Date(s * 1000) : uPlot.tzDate(new Date(s * 1000), 'Etc/UTC'),
        cursor: {
          drag: { x: true, y: false, setScale: false },
          points: { size: 7 },
          y: false,
          focus: { prox: 24 },
        },
        select: { show: true },
        scales: {
          x: {
            time: true,
            range: () => [latest.current.range.fromS, latest.current.range.toS],
          },
          y: {
            range: (_plot, low, high) => {
              if (low === null || high === null) return [0, 1];
              const bottom = Math.min(0, low);
              return [bottom, high === bottom ? bottom + 1 : high + (high - bottom) * 0.08];
            },
          },
        },
        axes: [
          { ...axis, values: timeTicks(tz), space: 76, size: 40 },
          {
            ...axis,
            values: (_plot, splits) => splits.map((value) => latest.current.format(value)),
            size: (_plot, values) =>
              Math.max(44, ...(values ?? []).map((each) => 14 + String(each).length * 6.6)),
          },
        ],
        series: [
          {},
          ...series.map((each, i) => ({
            label: each.label,
            stroke: () => cssValue(`--series-${i + 1}`),
            width: 1.75,
            dash: DASHES[i],
            spanGaps: false,
            points: { size: 4 },
            show: !hidden[each.label],
          })),
        ],
        hooks: {
          setCursor: [
            (self) => {
              const at = self.cursor.idx;
              setIndex(at ?? null);
              if (!latest.current.cursor || self.isFollowing) return;
              latest.current.cursor.value =
                at === null || at === undefined || self.cursor.left < 0
                  ? null
                  : { s: self.data[0][at], by: self };
            },
          ],
          setSelect: [
            (self) => {
              if (self.select.width < 8) return;
              const from = self.posToVal(self.select.left, 'x');
              const to = self.posToVal(self.select.left + self.select.width, 'x');
              self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
              latest.current.onRange?.(from, to);
            },
          ],
          draw: [drawMarks(latest)],
        },
      },
      latest.current.data,
      box.current,
    );
    plot.current = made;
    const clicked = () => {
      const at = made.cursor.idx;
      if (at !== null && at !== undefined) latest.current.onChoose?.(made.data[0][at]);
    };
    made.over.addEventListener('click', clicked);
    const redraw = () => {
      colours.clear();
      made.redraw(false, true);
    };
    const scheme = matchMedia('(prefers-color-scheme: dark)');
    scheme.addEventListener('change', redraw);
    const themed = new MutationObserver(redraw);
    themed.observe(document.documentElement, { attributes: true });
    return () => {
      scheme.removeEventListener('change', redraw);
      themed.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [width > 0, shape, tz, height]);

  useEffect(() => {
    if (plot.current && width) plot.current.setSize({ width, height });
  }, [width, height]);

  useEffect(() => {
    plot.current?.setData(data);
  }, [data, range.fromS, range.toS]);

  useEffect(() => {
    plot.current?.redraw(false, false);
  }, [chosenS, marks]);

  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    series.forEach((each, i) => made.setSeries(i + 1, { show: !hidden[each.label] }));
  }, [hidden]);

  // The cursor of another chart of the page.
  useEffect(() => {
    if (!cursor) return undefined;
    return cursor.subscribe((place) => {
      const made = plot.current;
      if (!made || place?.by === made) return;
      made.isFollowing = true;
      made.setCursor(
        place === null || place === undefined
          ? { left: -10, top: -10 }
          : { left: made.valToPos(place.s, 'x'), top: 0 },
      );
      made.isFollowing = false;
    });
  }, [cursor]);

  const shownIndex = index ?? (chosenS === null ? null : nearest(times, chosenS));
  const shownS = shownIndex === null ? null : times[shownIndex];

  const moveTo = (at) => {
    const made = plot.current;
    if (!made || !times.length) return;
    const bounded = Math.max(0, Math.min(times.length - 1, at));
    made.setCursor({ left: made.valToPos(times[bounded], 'x'), top: 0 });
    if (cursor) cursor.value = { s: times[bounded], by: made };
    setIndex(bounded);
  };
  const zoom = (factor) => {
    const middle = shownS ?? (range.fromS + range.toS) / 2;
    onRange?.(
      middle - (middle - range.fromS) * factor,
      middle + (range.toS - middle) * factor,
    );
  };
  const onKeyDown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = index ?? times.length - 1;
    const far = event.shiftKey ? 10 : 1;
    const keys = {
      ArrowLeft: () => moveTo(at - far),
      ArrowRight: () => moveTo(at + far),
      Home: () => moveTo(0),
      End: () => moveTo(times.length - 1),
      '+': () => zoom(0.5),
      '-': () => zoom(2),
      Enter: () => shownS !== null && onChoose?.(shownS),
      Escape: () => {
        plot.current?.setCursor({ left: -10, top: -10 });
        if (cursor) cursor.value = null;
        setIndex(null);
      },
    };
    if (keys[event.key]) {
      keys[event.key]();
      event.preventDefault();
      event.stopPropagation();
    }
  };

  const said = isEmpty
    ? 'no values in this range'
    : series
        .map((each, i) => {
          const value = shownIndex === null ? null : valueAt(times, data[i + 1], shownIndex);
          return `${each.label}: ${(each.format ?? format)(value)}`;
        })
        .join(', ');
  const groups = useMemo(
    () => grouped(marks, range, width),
    [marks, range.fromS, range.toS, width],
  );
  const heading = id && `${id}-title`;
  return html`<section class="chart card" aria-labelledby=${heading} data-chart=${title}>
    <header class="chart-head">
      <h2 id=${heading}>${title}</h2>
      ${note && html`<p class="muted">${note}</p>`}
      <span class="chart-actions">
        <button type="button" class="button button-quiet button-small" aria-expanded=${isTable}
          onClick=${() => setIsTable(!isTable)}>${isTable ? 'hide table' : 'table'}</button>
        ${actions}
      </span>
    </header>
    <div class="chart-marks" role="list" aria-label="Events in this range">
      ${groups.map(
        (each) => html`<a role="listitem" class=${`chart-mark ${each.level}`} key=${each.s}
          href=${each.href} style=${{ left: `${each.left}px` }} title=${each.text}
          aria-label=${each.text}>${each.count > 1 ? each.count : '▾'}</a>`,
      )}
    </div>
    <div class="chart-plot" tabindex="0" role="group" onKeyDown=${onKeyDown}
      aria-label=${`Chart ${title}. Arrow keys move the cursor, plus and minus zoom, Enter chooses the time.`}
      onMouseLeave=${() => cursor && (cursor.value = null)}>
      <div ref=${box} class="chart-canvas" style=${{ minHeight: `${height}px` }}></div>
      ${isEmpty && html`<div class="chart-empty">${empty ?? 'No values in this range.'}</div>`}
    </div>
    <ul class="chart-legend">
      ${series.map(
        (each, i) => html`<li key=${each.label}>
          <button type="button" class="button button-quiet button-small" aria-pressed=${!hidden[each.label]}
            title="Show or hide this line"
            onClick=${() => setHidden({ ...hidden, [each.label]: !hidden[each.label] })}>
            <svg class="chart-key" viewBox="0 0 26 8" aria-hidden="true">
              <line class=${`series-${i + 1}`} x1="0" y1="4" x2="26" y2="4"
                stroke-dasharray=${DASHES[i].join(' ') || 'none'} />
            </svg>
            <span class="chart-name">${each.label}</span>
          </button>
          <output class="numeric">${(each.format ?? format)(
            valueAt(times, data[i + 1], shownIndex ?? times.length - 1),
          )}</output>
        </li>`,
      )}
      <li class="chart-at muted">${shownS === null
        ? isEmpty ? '' : 'newest'
        : formatTime(shownS * 1e6, tz)}</li>
    </ul>
    <p class="hidden-text" role="status">${index === null ? '' : `${formatTime(times[index] * 1e6, tz)}: ${said}`}</p>
    ${isTable && html`<${ChartTable} id=${id} title=${title} data=${data} series=${series} format=${format} tz=${tz} />`}
  </section>`;
}

function ChartTable({ id, title, data, series, format, tz }) {
  const rows = useMemo(() => {
    const found = [];
    for (let i = data[0].length - 1; i >= 0; i -= 1) {
      found.push({ at: data[0][i], values: series.map((_each, of) => data[of + 1][i] ?? null) });
    }
    return found;
  }, [data]);
  const columns = [
    { key: 'time', title: 'Time', value: (row) => row.at, text: (row) => formatTime(row.at * 1e6, tz) },
    ...series.map((each, i) => ({
      key: `v${i}`,
      title: each.label,
      numeric: true,
      value: (row) => row.values[i],
      text: (row) => (each.format ?? format)(row.values[i]),
    })),
  ];
  return html`<${Table} id=${`${id}-values`} columns=${columns} rows=${rows} caption=${`Values of ${title}`} prefix=${id} filter=${false} rowKey=${(row) => row.at} />`;
}

function drawMarks(latest) {
  return (self) => {
    const { marks, chosenS } = latest.current;
    const { ctx, bbox } = self;
    const ratio = devicePixelRatio;
    ctx.save();
    for (const each of marks) {
      const x = Math.round(self.valToPos(each.s, 'x', true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = cssValue(`--${each.level === 'act' || each.level === 'attention' ? each.level : 'edge'}`);
      ctx.lineWidth = ratio;
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    if (chosenS !== null) {
      const x = Math.round(self.valToPos(chosenS, 'x', true));
      if (x >= bbox.left && x <= bbox.left + bbox.width) {
        ctx.strokeStyle = cssValue('--text');
        ctx.lineWidth = 1.5 * ratio;
        ctx.setLineDash([]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
    }
    ctx.restore();
  };
}

const WORST = { act: 3, attention: 2, working: 1, info: 0 };

// Marks that would lie on one another, as one that counts them; the worst level wins.
function grouped(marks, range, width) {
  const axis = 52;
  const perS = (width - axis - 8) / (range.toS - range.fromS);
  const found = [];
  for (const each of [...marks].sort((a, b) => a.s - b.s)) {
    if (each.s < range.fromS || each.s > range.toS || width < axis * 2) continue;
    const left = axis + (each.s - range.fromS) * perS;
    const last = found.at(-1);
    if (last && left - last.left < MARKS_APART_PX) {
      last.count += 1;
      if (last.count <= 6) last.text += `\n${each.text}`;
      else if (last.count === 7) last.text += '\n…';
      if ((WORST[each.level] ?? 0) > (WORST[last.level] ?? 0)) last.level = each.level;
    } else {
      found.push({ ...each, left, count: 1 });
    }
  }
  return found;
}
