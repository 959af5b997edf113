//! A subscriber for one thread that keeps all spans and events.

use std::{
    collections::BTreeMap,
    fmt::{Debug, Write},
    sync::{Arc, LazyLock, Mutex, MutexGuard},
};
use tracing::{
    Dispatch, Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{DefaultGuard, NoSubscriber},
};
use tracing_subscriber::{
    Layer, Registry,
    filter::LevelFilter,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

/// All spans and events of the thread of a test.
pub(crate) struct Collected {
    data: Data,
    _installed: DefaultGuard,
}

/// A span.
#[derive(Clone, Debug)]
pub(crate) struct SpanData {
    name: &'static str,
    parent: Option<usize>,
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) closed: bool,
}

#[derive(Clone, Default)]
struct Data(Arc<Mutex<(Vec<SpanData>, String)>>);

impl Data {
    fn lock(&self) -> MutexGuard<'_, (Vec<SpanData>, String)> {
        self.0.lock().expect("no panic")
    }
}

/// The place of a span in the list of spans.
struct Index(usize);

impl Collected {
    pub(crate) fn record() -> Self {
        Self::with(LevelFilter::TRACE)
    }

    /// Keeps what the usual level shows.
    pub(crate) fn at_info() -> Self {
        Self::with(LevelFilter::INFO)
    }

    /// While tracing knows of one subscriber only, a thread without a subscriber that is the first to reach a span
    /// switches that span off for all threads.
    pub(crate) fn keep_spans_enabled() {
        static SECOND_SUBSCRIBER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
        LazyLock::force(&SECOND_SUBSCRIBER);
    }

    fn with(level: LevelFilter) -> Self {
        Self::keep_spans_enabled();
        let data = Data::default();
        let _installed = Registry::default().with(data.clone()).with(level).set_default();
        Self { data, _installed }
    }

    /// Returns the spans with this name.
    pub(crate) fn named(&self, name: &str) -> Vec<SpanData> {
        self.data.lock().0.iter().filter(|span| span.name == name).cloned().collect()
    }

    /// Returns the names from the outermost span to each span with this name.
    pub(crate) fn paths(&self, name: &str) -> Vec<String> {
        let spans = &self.data.lock().0;
        let path = |span: &SpanData| {
            let (mut path, mut parent) = (span.name.to_owned(), span.parent);
            while let Some(outer) = parent.map(|parent| &spans[parent]) {
                path = format!("{}/{path}", outer.name);
                parent = outer.parent;
            }
            path
        };
        spans.iter().filter(|span| span.name == name).map(path).collect()
    }

    /// Returns how many events of the level contain the text.
    pub(crate) fn events(&self, level: Level, text: &str) -> usize {
        let is_meant = |line: &&str| line.starts_with(&level.to_string()) && line.contains(text);
        self.data.lock().1.lines().filter(is_meant).count()
    }

    /// Returns all events and spans as text.
    pub(crate) fn text(&self) -> String {
        let (spans, events) = &*self.data.lock();
        let mut text = events.clone();
        for SpanData { name, fields, .. } in spans {
            let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
            writeln!(text, "{name} {}", fields.join(" ")).expect("text");
        }
        text
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Data {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).expect("the registry has it");
        let parent = span.parent().and_then(|parent| parent.extensions().get::<Index>().map(|index| index.0));
        let mut data = SpanData { name: span.name(), parent, fields: BTreeMap::new(), closed: false };
        attributes.record(&mut data);
        let spans = &mut self.lock().0;
        span.extensions_mut().insert(Index(spans.len()));
        spans.push(data);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let index = context.span(id).expect("the registry has it").extensions().get::<Index>().expect("listed").0;
        values.record(&mut self.lock().0[index]);
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let index = context.span(id).expect("the registry has it").extensions().get::<Index>().expect("listed").0;
        let name = context.span(follows).expect("the registry has it").name();
        self.lock().0[index].fields.insert("follows".to_owned(), name.to_owned());
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let text = &mut self.lock().1;
        write!(text, "{} ", event.metadata().level()).expect("text");
        event.record(&mut Line(text));
        text.push('\n');
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let index = context.span(&id).expect("the registry has it").extensions().get::<Index>().expect("listed").0;
        self.lock().0[index].closed = true;
    }
}

impl Visit for SpanData {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }
}

/// A line of the log.
struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("text");
    }
}
