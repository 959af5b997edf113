//! One metric with a handle for each combination of its labels.

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use std::sync::OnceLock;

/// A metric as documents and recorders see it.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    /// Whether it has the labels `namespace` and `name`.
    pub(super) is_named: bool,
    /// The other labels, with all their values.
    pub(super) labels: &'static [(&'static str, Values)],
    pub(super) help: &'static str,
}

/// The values of one label.
pub(super) type Values = &'static [&'static str];

/// A counter, gauge or histogram of the facade.
pub(super) trait Instrument: Clone {
    fn register(recorder: &dyn Recorder, key: &Key, metadata: &Metadata<'_>) -> Self;
    fn describe(recorder: &dyn Recorder, name: KeyName, unit: Unit, help: SharedString);
}

macro_rules! instruments {
    ($($type:ident, $register:ident, $describe:ident;)+) => {
        $(impl Instrument for $type {
            fn register(recorder: &dyn Recorder, key: &Key, metadata: &Metadata<'_>) -> Self {
                recorder.$register(key, metadata)
            }

            fn describe(recorder: &dyn Recorder, name: KeyName, unit: Unit, help: SharedString) {
                recorder.$describe(name, Some(unit), help);
            }
        })+
    };
}

instruments! {
    Counter, register_counter, describe_counter;
    Gauge, register_gauge, describe_gauge;
    Histogram, register_histogram, describe_histogram;
}

/// The handles of one metric, one for each of the `N` combinations of its labels. Each is resolved when it is first used.
pub(super) struct Family<H, const N: usize> {
    metric: &'static Metric,
    members: [Member<H>; N],
}

struct Member<H> {
    handle: OnceLock<H>,
    key: OnceLock<Key>,
}

impl<H: Instrument, const N: usize> Family<H, N> {
    pub(super) fn new(metric: &'static Metric) -> Self {
        Self { metric, members: std::array::from_fn(|_| Member { handle: OnceLock::new(), key: OnceLock::new() }) }
    }

    /// Applies the function to the handle of the member at `index`. `names` are the labels that all members share.
    pub(super) fn with(&self, names: &[Label], index: usize, apply: impl FnOnce(&H)) {
        match self.members[index].handle.get() {
            Some(handle) => apply(handle),
            None => apply(&self.resolve(names, index)),
        }
    }

    /// Returns the handle of the first member.
    pub(super) fn handle(&self, names: &[Label]) -> H {
        self.members[0].handle.get().cloned().unwrap_or_else(|| self.resolve(names, 0))
    }

    /// Reports whether the handle of the first member is kept.
    pub(super) fn is_resolved(&self) -> bool {
        self.members[0].handle.get().is_some()
    }

    /// Resolves all handles, so that a recorder shows each member from now on.
    pub(super) fn resolve_all(&self, names: &[Label]) {
        for index in 0..N {
            self.resolve(names, index);
        }
    }

    /// Resolves the handle, and keeps it if there is a recorder.
    ///
    /// A program without a recorder has the one of `metrics` that does nothing. A handle of that recorder would do
    /// nothing for ever, so it is not kept, and a recorder may be installed at any time. That recorder has no size. If
    /// another one has no size either, its handles are resolved for each use.
    #[cold]
    fn resolve(&self, names: &[Label], index: usize) -> H {
        let Member { handle, key } = &self.members[index];
        let key = key.get_or_init(|| self.metric.key(names, index));
        metrics::with_recorder(|recorder| {
            let resolved = H::register(recorder, key, &METADATA);
            if size_of_val(recorder) > 0 {
                H::describe(recorder, key.name_shared(), self.metric.unit, self.metric.help.into());
                let _ = handle.set(resolved.clone()); // another thread may have been faster, with the same handle
            }
            resolved
        })
    }
}

impl Metric {
    /// Returns name and labels of the member at `index`, as [`member`] counts them.
    fn key(&self, names: &[Label], index: usize) -> Key {
        let mut labels = if self.is_named { names.to_vec() } else { Vec::new() };
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
