// What a view asks for, and what comes.

import { useEffect, useState } from "../vendor/preact.js";

/**
 * The answer to a question, for a component, and what is wrong; nothing while it is on its way.
 * @param {(view: string, more?: object) => Promise<object>} get
 */
export function useData(get, view, more = {}) {
  const key = JSON.stringify([view, more]);
  const [found, keep] = useState({});
  useEffect(() => {
    let late = false;
    get(view, more).then(
      (value) => late || keep({ key, get, value }),
      (error) => late || keep({ key, get, error: error.message || String(error) }),
    );
    return () => void (late = true);
  }, [get, key]);
  return found.key === key && found.get === get ? [found.value, found.error] : [undefined, undefined];
}

/** Answers are kept: a question is asked once. */
export function kept(ask) {
  const known = new Map();
  return (view, more = {}) => {
    const key = JSON.stringify([view, more]);
    if (!known.has(key)) {
      const found = ask(view, more);
      known.set(key, found);
      found.catch(() => known.delete(key));
    }
    return known.get(key);
  };
}
