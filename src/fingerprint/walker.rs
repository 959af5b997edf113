//! The deserializer that answers with samples.

use super::walk::{BYTES, MISSING, Refusal, TEXTS, Walk, missing};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
    value::StrDeserializer,
};
use std::{
    any::type_name,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Answers the requests for the value at one place of a type.
pub(super) struct Walker<'w> {
    walk: &'w mut Walk,
    /// The innermost container, and the way from there.
    place: String,
}

impl<'w> Walker<'w> {
    fn new(walk: &'w mut Walk, place: String) -> Self {
        Self { walk, place }
    }

    /// Answers with one of several samples: the first one that the value has not refused in an earlier pass.
    fn leaf<R>(
        self,
        kind: &str,
        samples: usize,
        visit: impl FnOnce(usize) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        self.walk.ask(&self.place, kind)?;
        let request = format!("{} {kind}", self.place);
        let result = visit(self.walk.refused(&request).min(samples - 1));
        match &result {
            // The value may still refuse the sample after the visit.
            Ok(_) => self.walk.accepted = Some((request, samples)),
            Err(refusal) => {
                if let Refusal::NoneOf(names) = refusal {
                    self.walk.note(format!("{request} of {}", names.join(",")));
                }
                self.walk.refuse(&request, samples);
            }
        }
        result
    }

    /// Visits a container or a value in it, and leaves it again.
    fn within<R>(self, name: &str, visit: impl FnOnce(&mut Walk, usize) -> R) -> R {
        let visits = self.walk.enter(name);
        self.walk.depth += 1;
        let result = visit(self.walk, visits);
        self.walk.depth -= 1;
        self.walk.open.pop();
        result
    }

    fn fields<'de, V: Visitor<'de>>(
        self,
        name: &str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        let name = self.walk.name_of(format!("{name}{{{}}}", fields.join(",")), type_name::<V::Value>());
        self.walk.ask(&self.place, &name)?;
        self.within(&name, |walk, visits| {
            let next = walk.container(&name).next;
            let next = if visits > 0 || next >= fields.len() { 0 } else { next };
            // The struct says itself which fields it has.
            missing(|| visitor.visit_map(Fields { walk, name: &name, fields, next })).0
        })
    }

    fn elements<'de, V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_seq(Elements { walk: self.walk, place: self.place, next: 0, length })
    }

    /// Answers with a map: with the names that it must have, or with this number of other entries.
    fn entries<'de, V: Visitor<'de>>(self, others: usize, visitor: V) -> Result<V::Value, Refusal> {
        let Self { walk, place } = self;
        let names = walk.required.get(&place).cloned().unwrap_or_default();
        names.iter().enumerate().for_each(|(i, name)| walk.note(format!("{place} requires {i} {name}")));
        let length = if names.is_empty() { others } else { names.len() };
        visitor.visit_map(Entries { walk, place: &place, names: &names, next: 0, length })
    }
}

/// Visits the value at a place. If it is a map that lacks names, the next pass has them. If it refuses the value that it has
/// made of a sample, as a type with `try_from` does, the next pass has another sample.
pub(super) fn visit<R>(
    walk: &mut Walk,
    place: String,
    value: impl FnOnce(Walker<'_>) -> Result<R, Refusal>,
) -> Result<R, Refusal> {
    if walk.panicked.contains(&place) {
        return Err(Refusal::Other);
    }
    let (depth, open) = (walk.depth, walk.open.len());
    walk.depth += 1;
    // A panic of a sample must not become one of a request.
    let visit = AssertUnwindSafe(|| value(Walker { walk: &mut *walk, place: place.clone() }));
    let (result, missing) = missing(|| catch_unwind(visit));
    walk.depth = depth;
    walk.open.truncate(open);
    let result = result.unwrap_or_else(|_| {
        walk.note(format!("{place} panics"));
        walk.panicked.insert(place.clone());
        Err(Refusal::Other)
    });
    if let Some((request, samples)) = walk.accepted.take()
        && result.is_err()
    {
        walk.refuse(&request, samples);
    }
    let required = walk.required.entry(place).or_default();
    let known = required.len();
    for name in missing {
        if !required.contains(&name) {
            required.push(name);
        }
    }
    walk.progress += required.len() - known;
    result
}

/// Visits the value at a place within the current container.
fn descend<'de, S: DeserializeSeed<'de>>(walk: &mut Walk, place: String, seed: S) -> Result<S::Value, Refusal> {
    visit(walk, place, |walker| seed.deserialize(walker))
}

/// Implements the requests for leaves. Each has its samples in order.
macro_rules! leaves {
    ($($request:ident: $kind:literal = $visit:ident $samples:expr;)+) => {
        $(fn $request<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
            let samples = $samples;
            self.leaf($kind, samples.len(), |refused| visitor.$visit(samples[refused]))
        })+
    };
}

impl<'de> Deserializer<'de> for Walker<'_> {
    type Error = Refusal;

    leaves! {
        deserialize_bool: "bool" = visit_bool [true, false];
        deserialize_i8: "i8" = visit_i8 [1, 0];
        deserialize_i16: "i16" = visit_i16 [1, 0];
        deserialize_i32: "i32" = visit_i32 [1, 0];
        deserialize_i64: "i64" = visit_i64 [1, 0];
        deserialize_i128: "i128" = visit_i128 [1, 0];
        deserialize_u8: "u8" = visit_u8 [1, 0];
        deserialize_u16: "u16" = visit_u16 [1, 0];
        deserialize_u32: "u32" = visit_u32 [1, 0];
        deserialize_u64: "u64" = visit_u64 [1, 0];
        deserialize_u128: "u128" = visit_u128 [1, 0];
        deserialize_f32: "f32" = visit_f32 [1.0, 0.0];
        deserialize_f64: "f64" = visit_f64 [1.0, 0.0];
        deserialize_char: "char" = visit_char ['a', '1'];
        deserialize_str: "string" = visit_str TEXTS;
        deserialize_string: "string" = visit_str TEXTS;
        deserialize_bytes: "bytes" = visit_bytes BYTES;
        deserialize_byte_buf: "bytes" = visit_bytes BYTES;
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.walk.ask(&self.place, "option")?;
        match self.walk.is_recursive() {
            true => visitor.visit_none(),
            false => visit(self.walk, self.place + "?", |walker| visitor.visit_some(walker)),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.leaf("unit", 1, |_| visitor.visit_unit())
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Refusal> {
        self.leaf(name, 1, |_| visitor.visit_unit())
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Refusal> {
        let inner = self.walk.name_of(format!("{name}()"), type_name::<V::Value>());
        self.walk.ask(&self.place, &inner)?;
        self.within(&inner, |walk, _| visit(walk, inner.clone(), |walker| visitor.visit_newtype_struct(walker)))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.walk.ask(&self.place, "sequence")?;
        let length = usize::from(!self.walk.is_recursive());
        self.elements(length, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Refusal> {
        self.walk.ask(&self.place, &format!("tuple of {length}"))?;
        self.elements(length, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        let name = self.walk.name_of(format!("{name}({length})"), type_name::<V::Value>());
        self.walk.ask(&self.place, &name)?;
        self.within(&name, |walk, _| Walker::new(walk, name.clone()).elements(length, visitor))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.walk.ask(&self.place, "map")?;
        let others = usize::from(!self.walk.is_recursive());
        self.entries(others, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        self.fields(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        let name = self.walk.name_of(format!("{name}<{}>", variants.join(",")), type_name::<V::Value>());
        self.walk.ask(&self.place, &name)?;
        self.within(&name, |walk, visits| {
            let (container, start) = (walk.container(&name), walk.start());
            let known = container.readable.unwrap_or(visits.checked_rem(variants.len()).unwrap_or(0));
            let index = if visits > 0 || container.next >= variants.len() { known } else { container.next };
            let variant = *variants.get(index).ok_or(Refusal::Other)?;
            let result = visitor.visit_enum(Variant { walk: &mut *walk, place: format!("{name}.{variant}"), variant });
            if walk.has_settled(start) {
                walk.explored(&name, index);
            }
            if result.is_ok() {
                walk.readable(&name, index);
            }
            result
        })
    }

    /// The name of a variant, whose names are in the refusal of the first sample.
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.leaf("identifier", 2, |refused| if refused == 0 { visitor.visit_str("") } else { visitor.visit_u64(0) })
    }

    /// The value may be of any kind. Maps are tried first, because types with names have most to tell.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        let place = self.place.clone();
        self.walk.ask(&place, "any")?;
        self.within("any", |walk, _| {
            let before = walk.progress;
            let result = match walk.refused(&place) {
                0 => Walker::new(&mut *walk, place.clone()).entries(0, visitor),
                1 => visitor.visit_str(TEXTS[0]),
                2 => visitor.visit_u64(1),
                _ => visitor.visit_unit(),
            };
            if result.is_err() && walk.progress == before && MISSING.with_borrow(Vec::is_empty) {
                walk.refuse(&place, 4);
            }
            result
        })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_unit()
    }

    fn is_human_readable(&self) -> bool {
        self.walk.is_human_readable
    }
}

/// The fields of a struct, from one on. Without all fields no struct is made, but the others are explored.
struct Fields<'w> {
    walk: &'w mut Walk,
    name: &'w str,
    fields: &'static [&'static str],
    next: usize,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refusal> {
        self.fields.get(self.next).map(|field| seed.deserialize(name(field))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        let (start, index) = (self.walk.start(), self.next);
        self.next += 1;
        let place = format!("{}.{}", self.name, self.fields.get(index).ok_or(Refusal::Other)?);
        let value = descend(self.walk, place, seed);
        // The field gets another pass, unless this one has found nothing.
        if self.walk.has_settled(start) {
            self.walk.explored(self.name, index);
        }
        value
    }
}

/// The entries of a map.
struct Entries<'w> {
    walk: &'w mut Walk,
    place: &'w str,
    names: &'w [&'static str],
    next: usize,
    length: usize,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refusal> {
        if self.next == self.length {
            return Ok(None);
        }
        match self.names.get(self.next) {
            Some(known) => seed.deserialize(name(known)),
            None => descend(self.walk, format!("{} key", self.place), seed),
        }
        .map(Some)
    }

    /// Visits the value even if its key refuses all samples.
    fn next_entry_seed<K: DeserializeSeed<'de>, V: DeserializeSeed<'de>>(
        &mut self,
        key: K,
        value: V,
    ) -> Result<Option<(K::Value, V::Value)>, Refusal> {
        let key = self.next_key_seed(key);
        if let Ok(None) = key {
            return Ok(None);
        }
        let value = self.next_value_seed(value);
        Ok(key?.zip(Some(value?)))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        let place = format!("{}.{}", self.place, self.names.get(self.next).unwrap_or(&"value"));
        self.next += 1;
        descend(self.walk, place, seed)
    }
}

/// The elements of a sequence, or of a tuple.
struct Elements<'w> {
    walk: &'w mut Walk,
    place: String,
    next: usize,
    length: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refusal> {
        if self.next == self.length {
            return Ok(None);
        }
        let place = format!("{}.{}", self.place, self.next);
        self.next += 1;
        descend(self.walk, place, seed).map(Some)
    }
}

/// One variant of an enum.
struct Variant<'w> {
    walk: &'w mut Walk,
    place: String,
    variant: &'static str,
}

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Refusal;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Refusal> {
        Ok((seed.deserialize(name(self.variant))?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Refusal;

    fn unit_variant(self) -> Result<(), Refusal> {
        self.walk.ask(&self.place, "unit")
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refusal> {
        descend(self.walk, self.place, seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Refusal> {
        Walker::new(self.walk, self.place).deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Refusal> {
        let name = self.place.clone();
        Walker::new(self.walk, self.place).fields(&name, fields, visitor)
    }
}

fn name(name: &'static str) -> StrDeserializer<'static, Refusal> {
    name.into_deserializer()
}
