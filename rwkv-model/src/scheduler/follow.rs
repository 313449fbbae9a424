//! Prompts that begin alike are read once.
//!
//! A session whose prompt begins with what another one is about to read waits until that one has come to where they part, and
//! goes on from a copy of its state, which has the bits that feeding the tokens would have given. It loses nothing by that: the other one
//! is as far already, and both would have equal shares of the rows. If the other one ends before, it goes on from there.
//!
//! Sessions that begin with states of their own follow each other if these are the same and none has fed anything yet, as the
//! choices of one request are.

use std::sync::Arc;

use super::prefix::{LEAST_TOKENS, common};
use super::session::{End, Session, take_ended};
use crate::kv::Budget;
use crate::state::State;

/// The sessions that wait for others.
#[derive(Default)]
pub(super) struct Followers {
    waiting: Vec<Follower>,
}

struct Follower {
    session: Session,
    /// The one that reads.
    leader: u64,
    /// How far.
    at: usize,
}

/// A session whose leader has come as far as it was followed.
pub(super) struct Ready {
    pub session: Session,
    /// Tokens that it need not feed.
    pub gained: usize,
    /// Those after its prompt, if that ends here.
    pub logits: Option<Vec<f32>>,
}

impl Followers {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.waiting.iter().map(|follower| &follower.session)
    }

    /// Takes back the memory of keys and values of one that waits, which can begin from nothing as well; whether there was one.
    pub fn take_memory(&mut self, budget: &Arc<Budget>, state: impl FnOnce() -> State) -> bool {
        let has = |session: &Session| session.can_restart() && session.kv_charge(budget) > 0;
        let found = self.waiting.iter_mut().rev().find(|follower| has(&follower.session));
        let is_found = found.is_some();
        if let Some(follower) = found {
            follower.session.go_on_from(state(), 0);
        }
        is_found
    }

    /// Takes in a session that can follow one of the others; gives it back if it cannot.
    pub fn take_in(&mut self, session: Session, others: &[Session]) -> Option<Session> {
        let leads = others.iter().filter_map(|other| Some((followed(&session, other)?, other.id)));
        let Some((at, leader)) = leads.max_by_key(|&(at, _)| at) else { return Some(session) };
        self.waiting.push(Follower { session, leader, at });
        None
    }

    /// Where a session has to stop next, because others go on from there.
    pub fn stop(&self, leader: &Session) -> Option<usize> {
        self.led_by(leader.id).map(|follower| follower.at).min()
    }

    fn led_by(&self, leader: u64) -> impl Iterator<Item = &Follower> {
        self.waiting.iter().filter(move |follower| follower.leader == leader)
    }

    /// Takes out the sessions that go on from where the others are now. `logits` says what came out for each of these.
    pub fn take_ready<'a>(&mut self, others: &[Session], logits: impl Fn(usize) -> &'a [f32]) -> Vec<Ready> {
        let mut ready = Vec::new();
        for mut follower in std::mem::take(&mut self.waiting) {
            let leader = others.iter().enumerate().find(|(_, other)| other.id == follower.leader);
            let Some((index, leader)) = leader.filter(|(_, leader)| leader.fed == follower.at) else {
                self.waiting.push(follower);
                continue;
            };
            let session = &mut follower.session;
            if !leader.state.fits_again() {
                // It reads for itself, as far as there is room.
                ready.push(Ready { session: follower.session, gained: 0, logits: None });
                continue;
            }
            let gained = follower.at - session.fed;
            session.go_on_from(leader.state.clone(), follower.at);
            let chooses = session.is_ready() && session.generates();
            let logits = chooses.then(|| logits(index).to_vec());
            ready.push(Ready { session: follower.session, gained, logits });
        }
        ready
    }

    /// Takes out the sessions that follow this one.
    pub fn take_led_by(&mut self, leader: u64) -> Vec<Session> {
        let led = self.waiting.extract_if(.., |follower| follower.leader == leader);
        led.map(|follower| follower.session).collect()
    }

    /// Takes out the sessions of which `check` says that they end.
    pub fn take_ended(&mut self, check: impl Fn(&Session) -> Result<(), End>) -> Vec<(Session, End)> {
        let ended = take_ended(&mut self.waiting, |follower| check(&follower.session));
        ended.into_iter().map(|(follower, end)| (follower.session, end)).collect()
    }

    /// Takes out all.
    pub fn take_all(&mut self) -> Vec<Session> {
        std::mem::take(&mut self.waiting).into_iter().map(|follower| follower.session).collect()
    }
}

/// How far a session can follow another, if that is worth its while.
fn followed(session: &Session, leader: &Session) -> Option<usize> {
    if !session.can_follow() || !leader.can_lead() || leader.fed < session.fed {
        return None;
    }
    let both_are_new = session.is_new && leader.is_new;
    let begin_alike = || (leader.fed, session.fed) == (0, 0) && leader.state == session.state;
    if !both_are_new && !begin_alike() {
        return None;
    }
    let at = common(session.prompt(), leader.prompt());
    // The logits after a prompt are there if the leader's ends there, too, and it wants them.
    let has_logits = at == leader.prompt().len() && leader.generates();
    let wants_logits = at == session.prompt().len() && session.generates();
    let at = if wants_logits && !has_logits { at - 1 } else { at };
    (at > leader.fed && at >= session.fed + LEAST_TOKENS).then_some(at)
}
