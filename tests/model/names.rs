//! Gives tokens and stamps the smallest names, so that states that differ in nothing but names are one state.
//!
//! Sound because tokens and stamps are compared for equality only: a renaming carries every step of one state into a
//! step of the other. It is what makes the state space finite although every `lead` has a new token.

use super::{
    server::{Entry, Lease, Led, Right, Server, Stamp, Token},
    state::{Call, Flight, Phase, Reply, Request, World},
};

/// Beyond all names that are in use at the beginning of a step.
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
    // By what they say in names that are given already, then by the rest.
    world.late.sort_unstable_by_key(|request| names.known(*request));
    for request in &mut world.late {
        names.request(request);
    }
    world.late.sort_unstable();
    if let Some(replica) = &mut world.replica {
        names.server(replica);
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
            Phase::Asking { token } | Phase::GivingBack { token } => self.token(token),
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
        if let Some(Call::Answered(Reply::Led(led, _))) = &mut flight.call {
            match led {
                Led::Hit(entry) => self.entry(entry),
                Led::Granted { stamp, .. } => self.stamp(stamp),
                Led::Wait { holder, .. } => self.token(holder),
                Led::Failed { .. } => {}
            }
        }
    }

    fn request(&mut self, request: &mut Request) {
        match request {
            Request::Lead { token, seen } => {
                self.token(token);
                if let Some(seen) = seen {
                    self.token(seen);
                }
            }
            Request::Fill { right, entry } => {
                match right {
                    Right::Lease(token, stamp) => {
                        self.token(token);
                        self.stamp(stamp);
                    }
                    Right::Promote(marker) => self.token(marker),
                }
                self.entry(entry);
            }
            Request::Abandon { token, .. } => self.token(token),
            Request::Extend { token, stamp } => {
                self.token(token);
                self.stamp(stamp);
            }
            Request::Invalidate { .. } => {}
        }
    }

    /// The request as far as its names are given.
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
