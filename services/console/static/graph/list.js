/* The graph as a list: below 600 px, and for screen readers. The same regions, instances and links in the same order. */
import { html } from '../core/html.js';
import { ms, plural, rate } from '../core/format.js';
import { href } from '../core/route.js';
import { Status } from '../core/status.js';
import { instanceLevel, instanceState, linkGlyph, kindOf, linkLevel, linkLines, regionFace, troubledLinks, unsafeText } from './faces.js';

/** With more links than this, only those that need somebody are listed; the page of links has all. */
const ALL_LINKS_MAX = 60;

function LinkItem({ link, nowUs }) {
  const kind = kindOf(link);
  const level = linkLevel(link);
  const [first, second] = linkLines(link, nowUs);
  const glyph = linkGlyph(kind, level) || '→';
  const unsafe = unsafeText(link);
  return html`<li class="graph-list-link is-${level} kind-${kind}">
    <a href=${href('link', [link.id])}>
      <span class="graph-list-glyph" aria-hidden="true">${glyph}</span>
      <span class="graph-list-to">to ${link.destination || link.to_group} <span class="muted">${link.configured_type || ''}</span></span>
      <span class="graph-list-state">${first[0]}</span>
      <span class="graph-list-more muted">${kind === 'sync' || kind === 'async' ? rate(link.rate_per_sec) : second[0] && second[0] !== unsafe ? second[0] : ''}</span>
      ${unsafe ? html`<span class="graph-list-unsafe">${unsafe}</span>` : null}
    </a></li>`;
}

export function GraphList({ fabric, topology }) {
  const instances = new Map((fabric.instances || []).map((instance) => [instance.name, instance]));
  const few = (fabric.links || []).length <= ALL_LINKS_MAX;
  const byFrom = new Map();
  for (const link of fabric.links || []) {
    if (!byFrom.has(link.from)) byFrom.set(link.from, []);
    byFrom.get(link.from).push(link);
  }
  return html`<div class="graph-list">${topology.regions.map((region) => {
    const face = regionFace(region.instances.map((name) => instances.get(name)));
    return html`<section class="graph-list-region" key=${region.name} aria-label=${region.name}>
      <h3>${region.name} <span class="muted">${face.answered < face.of ? `${face.answered} of ${face.of} answered` : plural(face.of, 'instance')}</span></h3>
      <ul>${region.instances.map((name) => {
        const instance = instances.get(name);
        const level = instanceLevel(instance);
        const links = byFrom.get(name) || [];
        const shown = few ? links : troubledLinks(links);
        return html`<li class="graph-list-instance" key=${name}>
          <a class="graph-list-name" href=${href('instance', [name])}>
            <${Status} level=${level} text=${name}/>
            <span class="muted">${level !== 'unknown' && instance.state === 'ready' ? `${rate(instance.acks_per_sec)} · p99 ${ms(instance.ack_ms_p99)}` : instanceState(instance)}</span>
          </a>
          ${instance && instance.may_fail_over === false ? html`<p class="graph-list-unsafe">clients may not fail over to it${instance.why_not ? `: ${instance.why_not}` : ''}</p>` : null}
          <ul>${shown.map((link) => html`<${LinkItem} key=${link.id} link=${link} nowUs=${fabric.time_us}/>`)}
            ${shown.length < links.length ? html`<li class="graph-list-rest"><a href=${href('links', [], { q: name })}>${shown.length ? '+ ' : ''}${plural(links.length - shown.length, 'link')}${shown.length ? ' more' : ', all well'}</a></li>` : null}
          </ul></li>`;
      })}</ul></section>`;
  })}</div>`;
}
