// Everything that a component imports of Preact, its signals and htm, from one place.
import { h, render, Component, Fragment, createRef } from '../vendor/preact.js';
import {
  useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from '../vendor/preact-hooks.js';
import {
  batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect,
} from '../vendor/preact-signals.js';
import htm from '../vendor/htm.js';

export const html = htm.bind(h);
export {
  h, render, Component, Fragment, createRef,
  useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState,
  batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect,
};

// Joins class names; what is false, null or empty is left out.
export const classes = (...names) => names.filter(Boolean).join(' ');
