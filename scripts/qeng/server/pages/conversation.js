// A conversation as a tree of turns: a question, and an answer of each model that was asked. A question that is edited
// begins another branch beside the first.

export class Turn {
  constructor(question, parent) {
    Object.assign(this, { question, parent, answers: [], branches: [], shown: 0 });
    if (parent) parent.shown = parent.branches.push(this) - 1;
  }
  get next() { return this.branches[this.shown]; }
  get place() { return this.parent.branches.indexOf(this); }
}

// The turns that are shown, from the first on.
export function path(root) {
  const list = [];
  for (let turn = root.next; turn; turn = turn.next) list.push(turn);
  return list;
}

// What a lane's model is asked at a turn. Where the lane had no answer, the first one's stands.
export function messages(system, turn, lane) {
  const list = [{ role: "user", content: turn.question }];
  for (let each = turn.parent; each.parent; each = each.parent) {
    const answer = each.answers[lane] ?? each.answers[0];
    list.unshift({ role: "user", content: each.question }, { role: "assistant", content: answer?.text ?? "" });
  }
  if (system) list.unshift({ role: "system", content: system });
  return list;
}
