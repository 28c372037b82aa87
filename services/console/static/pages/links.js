// Stands here until its page is written.
import { html } from '../core/html.js';
import { Loading } from '../core/states.js';

export default () => html`<h1>Links</h1><${Loading} />`;
