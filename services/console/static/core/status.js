// A state as glyph, colour and word: no one of the three alone.
import { html } from './html.js';

export const LEVELS = ['ready', 'working', 'attention', 'act', 'unknown'];
export const GLYPHS = { ready: '●', working: '◐', attention: '▲', act: '■', unknown: '?' };
export const WORDS = {
  ready: 'ready', working: 'working', attention: 'attention', act: 'act now', unknown: 'unknown',
};
const BADNESS = { ready: 0, working: 1, unknown: 2, attention: 3, act: 4 };

export const levelOf = (level) => (level in GLYPHS ? level : 'unknown');

// Returns how bad a level is: larger is worse. For columns that are sorted by it.
export const badness = (level) => BADNESS[levelOf(level)];

export const worst = (levels) =>
  levels.reduce((found, level) => (badness(level) > badness(found) ? level : found), 'ready');

// Without a text a screen reader says the level's word.
export function Status({ level, text = '', class: name = '' }) {
  const known = levelOf(level);
  return html`<span class="status status-${known} ${name}">
    <span class="glyph" aria-hidden="true">${GLYPHS[known]}</span>
    ${text
      ? html`<span class="status-text">${text}</span>`
      : html`<span class="hidden-text">${WORDS[known]}</span>`}
  </span>`;
}
