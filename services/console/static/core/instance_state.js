// The state of an instance in words: why it is not as it should be, and how old that is.
import { nowUs } from './fabric.js';
import { duration, exact, isKnown } from './format.js';

const MISSING = {
  silent: 'does not answer',
  never: 'has not answered yet',
  not_entitled: 'you may not read it',
  version: 'another version',
  wrong: 'answers what cannot be',
  none: 'no interface configured',
};

export function instanceState(instance) {
  const { state, level, missing, why, answered_us: answeredUs } = instance;
  if (missing && state === 'unknown') {
    const age = isKnown(answeredUs) && missing === 'silent'
      ? `, last answer ${duration(Math.max(0, Math.floor((nowUs.value - answeredUs) / 1e6)))} ago` : '';
    return `${MISSING[missing] ?? missing}${age}`;
  }
  const words = String(state).replaceAll('_', ' ');
  if (why) return `${words}: ${why}`;
  if (level === 'ready' || state !== 'ready') return words;
  const reasons = [];
  if (instance.slow_clients > 0) reasons.push(`${exact(instance.slow_clients)} slow clients`);
  if (instance.may_fail_over === false) reasons.push('unsafe to fail over to');
  return [words, ...reasons].join(', ');
}
