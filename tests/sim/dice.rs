//! Random numbers by seed and name.

use fastrand::Rng;
use std::time::Duration;

/// The random numbers of one part of a plan.
///
/// Each field has a generator of its own, seeded by the names on the way to it. So a field that is added, removed or
/// drawn differently changes no other draw of a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn of(seed: u64) -> Self {
        Self(0xcbf2_9ce4_8422_2325 ^ seed)
    }

    /// Returns the numbers of a part: FNV-1a of its name.
    pub(crate) fn part(self, name: &str) -> Self {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(name.bytes().chain([0]).fold(self.0, step))
    }

    /// Returns the numbers of each of that many parts that have the same name.
    pub(crate) fn parts(self, name: &str, count: usize) -> impl Iterator<Item = Self> {
        let name = name.to_owned();
        (0..count).map(move |number| self.part(&format!("{name} {number}")))
    }

    /// Returns the generator of a field.
    pub(crate) fn field(self, name: &str) -> Rng {
        Rng::with_seed(self.part(name).0)
    }

    /// Returns a field with one of these values.
    pub(crate) fn one_of<T: Clone>(self, field: &str, values: &[T]) -> T {
        values[self.field(field).usize(0..values.len())].clone()
    }

    /// Returns a field with one of these numbers of milliseconds.
    pub(crate) fn ms(self, field: &str, values: &[u64]) -> Duration {
        Duration::from_millis(self.one_of(field, values))
    }
}

#[test]
fn a_draw_depends_on_seed_and_names_alone() {
    let draw = |seed, part, field| Dice::of(seed).part(part).field(field).u64(..);
    let drawn = draw(1, "settings", "lease");
    assert_eq!(drawn, draw(1, "settings", "lease"));
    for other in [draw(2, "settings", "lease"), draw(1, "event", "lease"), draw(1, "settings", "wait")] {
        assert_ne!(drawn, other);
    }
}
