//! What a lock recipe promises.

mod promised;

pub use promised::Guarantees;

use stampede_guard::lock::{FencedLock, Recipe, SetPx};

/// A recipe with its guarantees.
pub trait LabRecipe: Recipe {
    /// Returns the guarantees of the recipe. Default: all.
    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }
}

impl LabRecipe for SetPx {}

impl LabRecipe for FencedLock {}

/// Returns all guarantees except for a change.
pub(crate) fn all_except(change: impl FnOnce(&mut Guarantees)) -> Guarantees {
    let mut guarantees = Guarantees::ALL;
    change(&mut guarantees);
    guarantees
}
