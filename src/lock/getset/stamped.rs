//! A lock of which only the time of its end is known.

use super::{
    super::{
        owned,
        recipe::{Claim, Doing, Held, held_if},
    },
    Clock, millis,
};
use crate::{lease::Hold, store::StoreError, wire::number};
use std::sync::Arc;

pub(super) struct Stamped {
    pub(super) claim: Arc<Claim>,
    pub(super) name: String,
    pub(super) clock: Clock,
    pub(super) until: u64,
}

impl Stamped {
    fn is_over(&self) -> bool {
        self.until <= millis((self.clock)())
    }
}

impl Held for Stamped {
    /// Only before its time is over; afterwards it may be somebody else's.
    fn release(&self) -> Doing<Hold> {
        let (claim, name, is_over) = (self.claim.clone(), self.name.clone(), self.is_over());
        Box::pin(async move {
            if is_over {
                return Ok(Hold::Lost);
            }
            Ok(held_if(number(&claim.hub.send(redis::cmd("DEL").arg(name)).await?)? == 1))
        })
    }

    fn check(&self) -> Doing<Hold> {
        if self.is_over() {
            return Box::pin(async { Ok::<_, StoreError>(Hold::Lost) });
        }
        owned::look(self.claim.clone(), &self.name)
    }
}
