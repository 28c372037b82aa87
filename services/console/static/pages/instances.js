// Stands here until its page is written.
import { html } from '../core/html.js';
import { Loading } from '../core/states.js';

export default () => html`<h1>Instances</h1><${Loading} />`;
