// Light or dark, as the system says or as somebody chose; the choice is this browser's.
import { effect, signal } from './html.js';

const NAME = 'raylay-colours';
const THEMES = ['auto', 'light', 'dark'];

function stored() {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null; // The browser keeps nothing for this site.
  }
}

export const theme = signal(THEMES.includes(stored()) ? stored() : 'auto');

export function nextTheme() {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
  try {
    localStorage.setItem(NAME, theme.value);
  } catch {
    // It holds until the page is closed.
  }
}

effect(() => {
  if (theme.value === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
});
