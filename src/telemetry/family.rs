//! One metric with a handle for each combination of its labels.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use std::sync::OnceLock;

/// The values of one label.
pub(super) type Values = &'static [&'static str];

/// A counter, gauge or histogram of the facade.
pub(super) trait Instrument: Clone {
    /// Registers the instrument, and describes it by unit and meaning if they are given.
    fn register(recorder: &dyn Recorder, key: &Key, described: Option<(Unit, &'static str)>) -> Self;
}

macro_rules! instruments {
    ($($type:ident, $register:ident, $describe:ident;)+) => {
        $(impl Instrument for $type {
            fn register(recorder: &dyn Recorder, key: &Key, described: Option<(Unit, &'static str)>) -> Self {
                if let Some((unit, help)) = described {
                    recorder.$describe(key.name_shared(), Some(unit), help.into());
                }
                recorder.$register(key, &METADATA)
            }
        })+
    };
}

instruments! {
    Counter, register_counter, describe_counter;
    Gauge, register_gauge, describe_gauge;
    Histogram, register_histogram, describe_histogram;
}

/// One metric, with a handle for each of the `N` combinations of its labels. Each is resolved when it is first used.
pub(super) struct Family<H, const N: usize> {
    /// The labels that all members share.
    names: Vec<Label>,
    name: &'static str,
    unit: Unit,
    /// The other labels, with all their values.
    labels: &'static [(&'static str, Values)],
    help: &'static str,
    members: [Member<H>; N],
}

struct Member<H> {
    handle: OnceLock<H>,
    key: OnceLock<Key>,
}

impl<H: Instrument, const N: usize> Family<H, N> {
    pub(super) fn new(
        names: &[Label],
        name: &'static str,
        unit: Unit,
        labels: &'static [(&'static str, Values)],
        help: &'static str,
    ) -> Self {
        let members = std::array::from_fn(|_| Member { handle: OnceLock::new(), key: OnceLock::new() });
        Self { names: names.to_vec(), name, unit, labels, help, members }
    }

    /// Applies the function to the handle of the member at `index`.
    pub(super) fn with(&self, index: usize, apply: impl FnOnce(&H)) {
        match self.members[index].handle.get() {
            Some(handle) => apply(handle),
            None => apply(&self.resolve(index)),
        }
    }

    /// Returns the handle of the first member.
    pub(super) fn handle(&self) -> H {
        self.members[0].handle.get().cloned().unwrap_or_else(|| self.resolve(0))
    }

    /// Reports whether the handle of the first member is kept.
    pub(super) fn is_resolved(&self) -> bool {
        self.members[0].handle.get().is_some()
    }

    /// Resolves all handles, so that a recorder shows each member from now on.
    pub(super) fn resolve_all(&self) {
        for index in 0..N {
            self.resolve(index);
        }
    }

    /// Resolves the handle, and keeps it if there is a recorder.
    ///
    /// A program without a recorder has the one of `metrics` that does nothing. A handle of that recorder would do
    /// nothing for ever, so it is not kept, and a recorder may be installed at any time. That recorder has no size. If
    /// another one has no size either, its handles are resolved for each use.
    #[cold]
    fn resolve(&self, index: usize) -> H {
        let Member { handle, key } = &self.members[index];
        let key = key.get_or_init(|| self.key(index));
        metrics::with_recorder(|recorder| {
            let described = (size_of_val(recorder) > 0).then_some((self.unit, self.help));
            let resolved = H::register(recorder, key, described);
            if described.is_some() {
                let _ = handle.set(resolved.clone()); // another thread may have been faster, with the same handle
            }
            resolved
        })
    }

    /// Returns name and labels of the member at `index`. The values of the last label vary first.
    fn key(&self, index: usize) -> Key {
        let mut labels = self.names.clone();
        let mut rest = index;
        for (label, values) in self.labels.iter().rev() {
            labels.push(Label::from_static_parts(label, values[rest % values.len()]));
            rest /= values.len();
        }
        Key::from_parts(self.name, labels)
    }
}

/// Returns the number of combinations of the labels.
pub(super) const fn combinations(labels: &[(&str, Values)]) -> usize {
    let (mut product, mut at) = (1, 0);
    while at < labels.len() {
        product *= labels[at].1.len();
        at += 1;
    }
    product
}

const METADATA: Metadata<'_> = Metadata::new("stampede_guard", Level::INFO, Some(module_path!()));
