// What is known of the engine: built up from the events of a pass, live or played back.

export const KIND = {
  EMBED: 0, NORM: 1, FIND: 2, WAIT: 3, BIND: 4, TIME_MIX: 5, ATTENTION: 6, CHANNEL_MIX: 7, HEAD: 8, SAVE_STATE: 9, RELEASE: 10,
  READ_BEGIN: 20, READ_END: 21, READ_FAILED: 22, WAIT_BEGIN: 23, LEASE: 24, FREE: 25,
};

export const FOUND = ["pinned", "ready", "late", "absent"];

// The columns of the grid.
export const COLUMNS = ["find", "check cache", "read or wait", "bind", "time mix", "channel mix", "save state", "release"];
export const [FIND, CHECK, WAIT, BIND, MIX, CHANNEL, SAVE, RELEASE] = COLUMNS.map((_, index) => index);

const COLUMN_OF = new Map([
  [KIND.FIND, FIND], [KIND.WAIT, WAIT], [KIND.BIND, BIND], [KIND.TIME_MIX, MIX], [KIND.ATTENTION, MIX], [KIND.HEAD, MIX],
  [KIND.EMBED, MIX], [KIND.CHANNEL_MIX, CHANNEL], [KIND.SAVE_STATE, SAVE], [KIND.RELEASE, RELEASE],
]);

export const isStage = ([kind]) => kind < 20;
export const columnOf = ([kind]) => COLUMN_OF.get(kind);

// The pack, with what the page wants to know about it.
export class Pack {
  constructor(facts) {
    Object.assign(this, facts);
    // Row 0 is the embedding, the last one the head.
    this.rows = [
      { name: "emb", kind: "global" },
      ...this.blocks.map((block) => (block >= 0 ? { name: String(block), kind: "block", block } : { name: `a${-2 - block}`, kind: "attention", block })),
      { name: "head", kind: "global" },
    ];
    this.rowOfBlock = new Map(this.rows.map((row, index) => [row.block, index]));
    this.rowOfGroup = this.groups.map(({ name }) => this.rowOf(name));
    this.swept = this.groups.flatMap(({ swept }, index) => (swept ? [index] : []));
  }

  rowOf(name) {
    const [kind, number] = name.split(".");
    if (kind === "head") return this.rows.length - 1;
    const block = kind === "blocks" ? Number(number) : kind === "attention" ? -2 - Number(number) : null;
    return this.rowOfBlock.get(block) ?? 0;
  }

  // Where in the grid an event happens.
  rowOfNote([, , , block, group]) {
    if (block !== -1) return this.rowOfBlock.get(block) ?? 0;
    return group >= 0 ? this.rowOfGroup[group] : -1;
  }
}

export class PassState {
  constructor(pack) {
    this.pack = pack;
    this.cells = pack.rows.map(() => COLUMNS.map(() => ({ ns: 0, at: -1e9, pass: -1, found: [] })));
    this.slots = [];
    this.clear();
  }

  clear() {
    this.pass = -1;
    this.current = null;
    this.norm = 0;
    this.group = -1;
    this.waited = 0;
    this.recent = [];
  }

  // A pass begins, with these slots.
  begin(pass, slots) {
    this.pass = pass;
    this.current = null;
    this.norm = 0;
    this.waited = 0;
    if (slots) this.setSlots(slots);
  }

  setSlots(slots) {
    this.slots = slots.map((slot) => ({ ...slot }));
  }

  slot(index) {
    while (this.slots.length <= index) this.slots.push({ group: null, state: "empty", bytes: 0 });
    return this.slots[index];
  }

  apply(note, now) {
    const [kind, , duration, , group, place, bytes] = note;
    if (isStage(note)) this.stage(note, duration, now);
    else if (place >= 0) {
      const slot = this.slot(place);
      if (kind === KIND.READ_BEGIN) {
        if (slot.group !== group || slot.state !== "loading") Object.assign(slot, { group, state: "loading", bytes: 0 });
      } else if (kind === KIND.READ_END) {
        slot.bytes += bytes;
        if (slot.bytes >= this.pack.groups[group].bytes && slot.state === "loading") slot.state = "ready";
      } else if (kind === KIND.LEASE) {
        Object.assign(slot, { group, state: "leased", bytes: this.pack.groups[group].bytes });
      } else if (kind === KIND.READ_FAILED || (kind === KIND.FREE && slot.group === group && slot.state === "leased")) Object.assign(slot, { group: null, state: "empty", bytes: 0 });
    }
    this.recent.push(note);
    if (this.recent.length > 64) this.recent.splice(0, 32);
  }

  stage(note, duration, now) {
    const [kind, , , , group, found] = note;
    if (kind === KIND.NORM) {
      this.norm += duration;
      return;
    }
    const row = kind === KIND.HEAD ? this.pack.rows.length - 1 : this.pack.rowOfNote(note);
    const column = columnOf(note);
    if (column === undefined) return;
    if (kind === KIND.WAIT) this.waited += duration;
    if (group >= 0) this.group = group;
    // The norm before a mix counts as a part of it.
    const isMix = column === MIX || column === CHANNEL;
    const cell = this.touch(Math.max(0, row), column, now);
    cell.ns += duration + (isMix ? this.norm : 0);
    if (isMix) this.norm = 0;
    if (kind === KIND.FIND) this.touch(Math.max(0, row), CHECK, now).found.push(found);
    this.current = { row: Math.max(0, row), column, group, kind };
  }

  touch(row, column, now) {
    const cell = this.cells[row][column];
    if (cell.pass !== this.pass) Object.assign(cell, { ns: 0, pass: this.pass, found: [] });
    cell.at = now;
    return cell;
  }

  // Where a group is: "pinned", "loading", "ready", "leased" or "away".
  where(group, pinned) {
    if (pinned.has(group)) return "pinned";
    const slot = this.slots.find((slot) => slot.group === group && slot.state !== "empty");
    return slot ? slot.state : "away";
  }
}
