// A dialog of the browser's own: it keeps the focus inside, and Escape closes it.
import { html, useEffect, useRef } from './html.js';

let numbers = 0;

export function Dialog({ title, onClose, children, class: name = '' }) {
  const ref = useRef(null);
  const id = useRef(`dialog-${(numbers += 1)}`);
  useEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    dialog.showModal();
    dialog.querySelector('[data-focus]')?.focus();
    return () => {
      dialog.close();
      if (before?.isConnected) before.focus?.();
    };
  }, []);
  const onCancel = (event) => {
    event.preventDefault();
    onClose();
  };
  // A press beside the dialog's content falls on its backdrop, which is the dialog itself.
  const onPointerDown = (event) => {
    if (event.target === ref.current) onClose();
  };
  return html`<dialog class="dialog ${name}" ref=${ref} aria-labelledby=${id.current}
      onCancel=${onCancel} onPointerDown=${onPointerDown}>
    <div class="dialog-inside">
      <header class="dialog-head">
        <h2 id=${id.current}>${title}</h2>
        <button type="button" class="button button-quiet" aria-label="close" onClick=${onClose}>✕</button>
      </header>
      ${children}
    </div>
  </dialog>`;
}
