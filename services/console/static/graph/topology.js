/*
 * The configured topology of a fabric, as the graph draws it: regions, instances and links in configured order, without any state.
 *
 * Everything that has a place on the page is derived from this, so that a refresh, a failed peer or a reload moves nothing.
 */

/** The graph's detail by the number of instances. */
export function detailOf(instances) {
  if (instances <= 3) return 'full';
  if (instances <= 12) return 'boxes';
  if (instances <= 48) return 'names';
  return 'cells';
}

/** With more links than this, links between two regions are drawn as bundles. */
export const BUNDLE_ABOVE = 30;

/** Reads `fabric.json`; instances without a region and links to unknown instances are tolerated (a peer may lie). */
export function topologyOf(fabric) {
  const regions = [];
  const regionOf = new Map();
  const byName = new Map();
  const addRegion = (name) => {
    const region = { name, instances: [] };
    regions.push(region);
    byName.set(name, region);
    return region;
  };
  const addInstance = (region, name) => {
    if (regionOf.has(name)) return;
    region.instances.push(name);
    regionOf.set(name, region.name);
  };
  for (const given of fabric.regions || []) {
    const region = byName.get(given.name) || addRegion(given.name);
    for (const name of given.instances || []) addInstance(region, name);
  }
  for (const instance of fabric.instances || []) {
    if (regionOf.has(instance.name)) continue;
    const group = instance.group || instance.name;
    addInstance(byName.get(group) || addRegion(group), instance.name);
  }
  let kept = regions.filter((region) => region.instances.length);
  const links = [];
  for (const link of fabric.links || []) {
    const fromRegion = regionOf.get(link.from);
    const to = (link.to || []).filter((name) => regionOf.has(name) && name !== link.from);
    const group = byName.get(link.to_group);
    const toRegion = to.length ? regionOf.get(to[0]) : group && group.instances.length ? group.name : undefined;
    if (fromRegion === undefined || toRegion === undefined) continue;
    links.push({ id: link.id, from: link.from, to, fromRegion, toRegion, type: link.configured_type === 'sync' ? 'sync' : 'async' });
  }
  // A fabric of one region is drawn as its instances: the links between them are the whole picture.
  const single = kept.length === 1 && kept[0].instances.length > 1 && kept[0].instances.length <= 12 ? kept[0] : null;
  if (single) {
    kept = single.instances.map((name) => ({ name, instances: [name] }));
    for (const link of links) Object.assign(link, { fromRegion: link.from, toRegion: link.to[0] || link.from, to: link.to.slice(0, 1) });
  }
  const instances = kept.reduce((sum, region) => sum + region.instances.length, 0);
  return { fabric: fabric.fabric || '', regions: kept, frameless: single ? single.name : null, links, instances, detail: detailOf(instances), bundled: links.length > BUNDLE_ABOVE };
}

/** A text that is equal for equal topologies; everything placed is kept under it. */
export function signatureOf(topology) {
  return JSON.stringify([topology.fabric, topology.frameless, topology.regions.map((r) => [r.name, r.instances]), topology.links.map((l) => [l.id, l.from, l.to, l.toRegion, l.type])]);
}
