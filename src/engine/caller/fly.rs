//! A flight of one's own: from its take-off to what it comes to for whoever opened it.

use super::{Caller, LATE, Round};
use crate::{
    clock::Timestamp,
    engine::{
        BoxFetch, CacheVerdict, Judge, Led,
        flight::{Flight, State},
        pilot::{Landed, Pilot, Start},
        run::Run,
    },
    entry::Entry,
    error::{Error, ErrorKind},
    store::BoxFuture,
    telemetry,
};
use futures_util::future::OptionFuture;
use std::future::Future;
use tokio::{sync::oneshot, time::timeout_at};

impl<'a, R: Send + 'a, J: Judge<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// Takes off before it is polled: else its future would have room for all that goes along.
    pub(super) fn fly(
        &self,
        flight: Flight,
        start: Start,
        seen: Option<Entry>,
        fetch: BoxFetch<'a, R>,
    ) -> impl Future<Output = Round<'a, R>> + Send {
        let watch = self.place.deadline.map(|deadline| (deadline, flight.watch()));
        let (own, within) = self.take_off(flight, start, seen, fetch);
        async move {
            within.await;
            let own = match watch {
                None => own.await,
                Some((deadline, watch)) => match timeout_at(deadline, own).await {
                    Ok(own) => own,
                    Err(_) => return self.stale_or_refused(watch.stands(), Error::overloaded(LATE)),
                },
            };
            match own {
                Ok(Landed::Own(answer, verdict) | Landed::OwnFailure(answer, verdict)) => {
                    Round::Answer(answer, verdict)
                }
                Ok(Landed::Unused(State::Declined(error, standing), _)) => self.stale_or_refused(standing, error),
                Ok(Landed::Unused(state, fetch)) => self.settle(state, fetch).await,
                Ok(Landed::Stale(entry)) => match self.judge.read(&entry, Timestamp::now()) {
                    Some(answer) => Round::Answer(answer, CacheVerdict::Stale),
                    None => self.refuse(Error::new(ErrorKind::Codec, "the stale entry does not decode")),
                },
                Ok(Landed::Failed(error)) => self.refuse(error),
                Err(_) => self.refuse(Error::new(ErrorKind::Panicked, "the task of the fetch was ended")),
            }
        }
    }

    /// Off it goes, to answer through the receiver; if it runs within its caller, as far as the future is awaited.
    pub(super) fn take_off(
        &self,
        flight: Flight,
        start: Start,
        seen: Option<Entry>,
        fetch: BoxFetch<'a, R>,
    ) -> (oneshot::Receiver<Landed<'a, R>>, OptionFuture<BoxFuture<'a, ()>>) {
        let (own, mine) = oneshot::channel();
        let mut leading = self.leading.clone();
        leading.push(Led { store: self.place.engine.store.clone(), at: self.place.at.clone() });
        let (place, scoped) = (self.place.clone(), self.spawn.is_none());
        // One that outlives its caller waits for others as long as they would.
        let give_up = if scoped { self.give_up } else { self.budget };
        let run = Box::new(Run { place, flight, seen, trail: self.trail.clone(), leading, give_up, scoped });
        let pilot = Pilot { judge: self.judge.clone(), own: Some(own), run };
        let flight: BoxFuture<'a, ()> = Box::pin(telemetry::in_current_span(pilot.fly(start, fetch)));
        let within = match self.spawn {
            Some(spawn) => {
                spawn(&self.place.engine, flight);
                None
            }
            None => Some(flight),
        };
        (mine, within.into())
    }
}
