// The first page: is anything wrong, where, since when, and what to do.
import { html } from '../core/html.js';
import { fabric, fabricError } from '../core/fabric.js';
import { Loading, Problem } from '../core/states.js';
import { Status } from '../core/status.js';

export default function Overview() {
  const found = fabric.value;
  if (!found) {
    return fabricError.value
      ? html`<${Problem} error=${fabricError.value} title="The state of the fabric could not be read" />`
      : html`<${Loading} text="asking the instances" />`;
  }
  return html`<div class="verdict"><h1><${Status} ...${found.verdict} /></h1></div>`;
}
