// The guided tour: the steps of one recorded pass that someone who has never seen the engine should stop at, each with a sentence
// about what happened there in this very pass.

import { FOUND, KIND } from "./pass.js";
import { bytes, count, time } from "./units.js";

// Returns `[{ at, sentence }]`, ascending.
export function tour(pack, { notes, slots, end_ns: end }) {
  const stages = notes.filter(([kind]) => kind < 20);
  const steps = [];
  const stop = (note, sentence, part = 0.5) => steps.push({ at: note[1] + note[2] * part, sentence });
  const embed = stages.find(([kind]) => kind === KIND.EMBED);
  if (embed) stop(embed, `The pass begins. The last token of each session is looked up in the embedding: a row of numbers, fetched in ${time(embed[2])}. It is what flows through all the layers from here.`);
  const first = pack.blocks[0];
  const slow = stages.find(([kind, , , block]) => kind === KIND.WAIT && block !== first && block !== -1);
  const shown = [first];
  if (slow) shown.push(slow[3]);
  const attention = pack.blocks.find((block) => block < -1);
  if (attention !== undefined && !shown.includes(attention)) shown.push(attention);
  shown.sort((a, b) => pack.rowOfBlock.get(a) - pack.rowOfBlock.get(b));
  for (const [index, block] of shown.entries()) {
    const own = stages.filter((note) => note[3] === block);
    if (index === 0) layer(own, block, true);
    else if (own.length) {
      stop(own[0], block === slow?.[3] ? `The layers between do the same. In ${title(block)} something else happens: the engine has to wait.` : `After some layers comes one that attends to all tokens before: ${title(block)}.`, 0);
      layer(own, block, false);
    }
  }
  const head = stages.filter(([kind, , , block]) => block === -1 && kind !== KIND.EMBED);
  if (head.length) {
    const found = (what) => stages.filter(([kind, , , , , where]) => kind === KIND.FIND && where === what).length;
    const waited = stages.reduce((sum, [kind, , duration]) => (kind === KIND.WAIT ? sum + duration : sum), 0);
    stop(head[0], `All ${pack.blocks.length} layers are done. The cache was asked for ${count(found(0) + found(1) + found(2) + found(3))} groups: ${found(0)} were pinned, ${found(1)} read ahead in time, ${found(2)} still being read, ${found(3)} not there. Waiting took ${time(waited)} of the pass.`, 0);
    const product = head.find(([kind]) => kind === KIND.HEAD);
    if (product) stop(product, `The head, the last of the weights, gives one number for each of the ${count(pack.vocabulary)} tokens of the vocabulary: the logits. They say how likely each token is to come next.`);
  }
  steps.push({ at: end, sentence: `The pass took ${time(end)}. A token is drawn from the logits for each session, becomes text, and begins the next pass. The states have changed; the weights never do.` });
  return steps.sort((a, b) => a.at - b.at);

  function layer(own, block, isFirst) {
    const said = new Set();
    for (const [index, note] of own.entries()) {
      const sentence = explain(note, own, index, isFirst);
      if (!sentence) continue;
      if (note[0] === KIND.FIND) {
        const name = pack.groups[note[4]].name;
        stop(note, `Find: ${title(block)} needs the group ${name}, ${bytes(pack.groups[note[4]].bytes)}${isFirst ? `, ${purpose(name)}` : ""}.`, 0);
        stop(note, sentence, 1);
      } else if (![KIND.BIND, KIND.SAVE_STATE].includes(note[0]) || !said.has(note[0])) stop(note, sentence);
      said.add(note[0]);
    }
  }

  function explain([kind, begin, duration, block, group, found], own, index, isFirst) {
    const name = group >= 0 ? pack.groups[group].name : "";
    const took = time(duration);
    switch (kind) {
      case KIND.NORM:
        return isFirst && index === 0 ? `Layer 0 begins. What flows in is normed, and mixed with what the token before left here: the token shift.` : null;
      case KIND.FIND:
        return check(found, name, begin);
      case KIND.WAIT:
        return `Wait: ${took} go by until the readers have brought ${name}. This is the time that read-ahead is there to hide.`;
      case KIND.BIND:
        return isFirst ? `Bind: the bytes are used as they lie in memory. Matrices are views of them; nothing is copied and nothing decoded, so it takes ${took}.` : null;
      case KIND.TIME_MIX:
        return `Time mix, ${took}: products with the weights give receptance, key and value; each of the ${pack.heads} heads lets its state matrix decay, corrects it by the new key and value, and reads it.`;
      case KIND.ATTENTION:
        return `Attention, ${took}: the token is compared with the keys of the tokens that it sees, and takes a mean of their values.`;
      case KIND.CHANNEL_MIX:
        return name.endsWith("key")
          ? `Channel mix, ${took}: a product with the key matrix. Only what is positive is kept, squared; most of it becomes zero.`
          : `Channel mix, ${took}: a product with the value matrix, of which the columns of zeros are not even touched.`;
      case KIND.SAVE_STATE:
        return isFirst ? `Save: what the next token needs to know of this layer is stored in the session's state. Its size never grows${pack.family === "RWKV-X" ? ", but for the keys and values of attention" : ""}.` : null;
      case KIND.RELEASE:
        return isFirst ? release(group, begin + duration) : null;
      default:
        return null;
    }
  }

  function check(found, name, at) {
    const slot = slotOf(name, at);
    switch (FOUND[found]) {
      case "pinned":
        return `Check the cache: ${name} is pinned. It was read once and stays in memory, so there is nothing to wait for.`;
      case "ready":
        return `Check the cache: ${name} lies in ${slot} already. A reader fetched it while the engine worked on something else.`;
      case "late":
        return `Check the cache: ${name} is being read into ${slot}, but is not complete.`;
      default:
        return `Check the cache: ${name} is neither in memory nor being read. It is read now.`;
    }
  }

  // In which slot a group was at that time.
  function slotOf(name, at) {
    let place = slots.findIndex(({ group }) => group !== null && pack.groups[group].name === name);
    for (const [kind, begin, , , group, where] of notes) {
      if (begin <= at && kind >= 20 && where >= 0 && pack.groups[group].name === name) place = where;
    }
    return place >= 0 ? `slot ${place}` : "a slot";
  }

  function release(group, at) {
    const freed = notes.find(([kind, begin, , , which]) => kind === KIND.FREE && which === group && begin <= at);
    if (!freed) return `Release: the lease ends. The group is pinned and stays where it is.`;
    const next = notes.find(([kind, begin, , , , place]) => kind === KIND.READ_BEGIN && place === freed[5] && begin >= freed[1]);
    return `Release: the lease ends, and slot ${freed[5]} is free${next ? ` for what comes next: ${pack.groups[next[4]].name}` : ""}.`;
  }
}

const title = (block) => (block >= 0 ? `layer ${block}` : `attention layer ${-2 - block}`);

function purpose(name) {
  if (name.endsWith(".att")) return "the matrices of the time mix";
  if (name.endsWith(".key")) return "the first matrix of the channel mix";
  if (name.endsWith(".value")) return "the second matrix of the channel mix";
  return "the weights of what follows";
}
