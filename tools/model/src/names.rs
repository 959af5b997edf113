//! Renames tokens and stamps to the smallest numbers, so that states that differ only in these names are one state.
//!
//! This is sound because tokens and stamps are compared for equality only: a renaming maps every step of one state to a
//! step of the other. It makes the state space finite although every `get_or_lease` has a new token.

use super::{
    server::{Entry, FillCondition, Lease, LeaseReply, Server, Stamp, Token},
    state::{Call, Counts, Flight, Phase, Reply, Request, World, Writer},
};

/// Larger than every name in use at the beginning of a step.
pub(crate) const FRESH: u8 = 128;

pub(crate) fn normalize(world: &mut World) {
    let mut names = Names::default();
    names.server(&mut world.server);
    for process in &mut world.processes {
        process.readers.sort_unstable();
        for flight in &mut process.flights {
            names.flight(flight);
        }
        for lookup in &mut process.lookups {
            if let Some(Some(entry)) = &mut lookup.found {
                names.entry(entry);
            }
        }
    }
    for writer in &mut world.writers {
        match writer {
            Writer::Rests => {}
            Writer::Sent(request) => names.request(request),
            Writer::Executed(request, reply) => {
                names.request(request);
                names.reply(reply);
            }
        }
    }
    // First by the names that are already assigned, then by the rest.
    world.late.sort_unstable_by_key(|request| names.known(*request));
    for request in &mut world.late {
        names.request(request);
    }
    world.late.sort_unstable();
    if let Some(replica) = &mut world.replica {
        names.server(replica);
    }
    for flight in world.processes.iter_mut().flat_map(|process| &mut process.flights) {
        if let Counts::Except(old) = &mut flight.counts {
            // Other names are in use nowhere.
            old.retain(|token| names.tokens.contains(token));
            old.iter_mut().for_each(|token| names.token(token));
            old.sort_unstable();
        }
    }
}

#[derive(Default)]
struct Names {
    tokens: Vec<Token>,
    stamps: Vec<Stamp>,
}

impl Names {
    fn token(&mut self, token: &mut Token) {
        token.name = place(&mut self.tokens, *token);
    }

    fn stamp(&mut self, stamp: &mut Stamp) {
        *stamp = place(&mut self.stamps, *stamp);
    }

    fn entry(&mut self, entry: &mut Entry) {
        self.token(&mut entry.id);
    }

    fn server(&mut self, server: &mut Server) {
        if let Some(entry) = &mut server.v {
            self.entry(entry);
        }
        if let Lease::Held { token, stamp, .. } = &mut server.l {
            self.token(token);
            self.stamp(stamp);
        }
    }

    fn flight(&mut self, flight: &mut Flight) {
        match &mut flight.phase {
            Phase::Asking { token } | Phase::Releasing { token } => self.token(token),
            Phase::Leading { token, stamp, .. } | Phase::Filling { token, stamp, .. } => {
                self.token(token);
                self.stamp(stamp);
            }
            Phase::Waiting | Phase::Local { .. } => {}
        }
        if let Some(seen) = &mut flight.seen {
            self.token(&mut seen.id);
        }
        if let Some(awaited) = &mut flight.awaited {
            self.token(awaited);
        }
        if let Some(Call::Answered(reply)) = &mut flight.call {
            self.reply(reply);
        }
    }

    fn reply(&mut self, reply: &mut Reply) {
        if let Reply::Lead(led, _) = reply {
            match led {
                LeaseReply::Hit(entry) => self.entry(entry),
                LeaseReply::Granted { stamp, .. } => self.stamp(stamp),
                LeaseReply::Wait { holder, .. } => self.token(holder),
                LeaseReply::Failed { .. } => {}
            }
        }
    }

    fn request(&mut self, request: &mut Request) {
        match request {
            Request::GetOrLease { token, seen, .. } => {
                self.token(token);
                if let Some(id) = seen {
                    self.token(id);
                }
            }
            Request::Fill { condition, entry } => {
                match condition {
                    FillCondition::Lease(token, stamp) => {
                        self.token(token);
                        self.stamp(stamp);
                    }
                    FillCondition::ReplaceMarker(marker) => self.token(marker),
                }
                self.entry(entry);
            }
            Request::Release { token, .. } | Request::Put { token, .. } => self.token(token),
            Request::Extend { token, stamp } => {
                self.token(token);
                self.stamp(stamp);
            }
            Request::Invalidate { .. } | Request::Expire { .. } => {}
        }
    }

    /// Returns the request with the names that are already assigned.
    fn known(&self, mut request: Request) -> Request {
        let mut names = Self { tokens: self.tokens.clone(), stamps: self.stamps.clone() };
        names.request(&mut request);
        request
    }
}

fn place<T: Copy + PartialEq>(known: &mut Vec<T>, name: T) -> u8 {
    let at = known.iter().position(|&other| other == name).unwrap_or_else(|| {
        known.push(name);
        known.len() - 1
    });
    at as u8
}
