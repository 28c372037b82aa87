/* What lines and signs mean, drawn with the same marks. */
import { Component, html } from '../core/html.js';
import { LineShape, Shield } from './marks.js';

const route = (width) => {
  const p0 = { x: 2, y: 9 };
  const p1 = { x: width - 2, y: 9 };
  return { p0, p1, c0: { x: width / 3, y: 9 }, c1: { x: (width * 2) / 3, y: 9 }, path: `M2 9L${width - 2} 9`, length: width - 4 };
};

const SAMPLES = [
  ['sync', 'ready', 'sync', 'sync: acks wait for it'],
  ['async', 'ready', 'async', 'async'],
  ['downgraded', 'attention', 'sync', 'downgraded: acks no longer wait'],
  ['catching_up', 'working', 'async', 'catching up'],
  ['disconnected', 'act', 'async', 'disconnected or refused'],
  ['unknown', 'unknown', 'async', 'unknown'],
];

/** Never drawn again: it holds no state. */
export class Legend extends Component {
  shouldComponentUpdate() {
    return false;
  }

  render() {
    return html`<ul class="graph-legend" aria-label="legend">
      ${SAMPLES.map(([kind, level, type, text]) => html`<li key=${kind}>
        <svg width="56" height="18" aria-hidden="true"><g class="g-line is-${level} kind-${kind}"><${LineShape} route=${route(56)} face=${{ kind, level, type, width: 0, unsafe: 0 }} mark=${true} at=${0.45}/></g></svg>${text}</li>`)}
      <li><svg width="18" height="18" aria-hidden="true"><g class="is-attention"><${Shield} x=${9} y=${9}/></g></svg>unsafe to fail over</li>
      <li><svg width="44" height="18" aria-hidden="true"><g class="g-line is-ready"><path class="g-stroke" stroke-width="1.5" d="M2 4H42"/><path class="g-stroke" stroke-width="2.5" d="M2 9H42"/><path class="g-stroke" stroke-width="4" d="M2 15H42"/></g></svg>below 100/s, 5,000/s, above</li>
    </ul>`;
  }
}
