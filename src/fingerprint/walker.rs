//! The deserializer that answers with samples.

use super::walk::{Walk, refusal};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
    value::{Error, MapDeserializer},
};
use std::{
    any::type_name,
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Answers the requests for the value at one place of a type.
pub(super) struct Walker<'w> {
    walk: &'w mut Walk,
    /// The innermost container, and the way from there.
    place: String,
}

impl Walker<'_> {
    /// Answers with one of several samples: the first one that the value has not refused in an earlier pass.
    fn leaf<R>(self, kind: &str, samples: usize, visit: impl FnOnce(usize) -> Result<R, Error>) -> Result<R, Error> {
        self.walk.ask(&self.place, kind)?;
        let request = format!("{} {kind}", self.place);
        let refused = self.walk.refused.get(&request).copied().unwrap_or(0);
        let result = visit(refused.min(samples - 1));
        match result {
            // The value may still refuse the sample after the visit.
            Ok(_) => self.walk.accepted = Some((request, samples)),
            Err(_) => self.walk.refuse(&request, samples),
        }
        result
    }

    /// Visits a container, and leaves it again. `visit` gets its name, and the number of visits of it that have not
    /// ended.
    fn within<R>(
        self,
        name: String,
        rust_type: &'static str,
        visit: impl FnOnce(&mut Walk, &str, usize) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let Self { walk, place } = self;
        let name = walk.name_of(name, rust_type);
        walk.ask(&place, &name)?;
        let visits = walk.open.iter().filter(|open| **open == name).count();
        walk.open.push(name.clone());
        walk.depth += 1;
        let result = visit(walk, &name, visits);
        walk.depth -= 1;
        walk.open.pop();
        result
    }

    fn fields<'de, V: Visitor<'de>>(
        self,
        name: &str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.within(format!("{name}{{{}}}", fields.join(",")), type_name::<V::Value>(), |walk, name, visits| {
            let next = walk.container(name).next;
            let next = if visits > 0 || next >= fields.len() { 0 } else { next };
            visitor.visit_map(Fields { walk, name, fields, next })
        })
    }

    fn elements<'de, V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { walk: self.walk, place: self.place, next: 0, length })
    }
}

/// Visits the value at a place. If the type refuses the value of a sample, as one with `try_from` may, the next pass
/// has another sample. A value that has panicked is not visited again.
pub(super) fn visit<R>(
    walk: &mut Walk,
    place: String,
    value: impl FnOnce(Walker<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let panics = format!("{place} panics");
    if walk.facts.contains(&panics) {
        return Err(refusal());
    }
    let (depth, open) = (walk.depth, walk.open.len());
    walk.depth += 1;
    // A panic of a sample must not become one of a request.
    let result = catch_unwind(AssertUnwindSafe(|| value(Walker { walk: &mut *walk, place })));
    walk.depth = depth;
    walk.open.truncate(open);
    let result = result.unwrap_or_else(|_| {
        walk.note(panics);
        Err(refusal())
    });
    if let Some((request, samples)) = walk.accepted.take()
        && result.is_err()
    {
        walk.refuse(&request, samples);
    }
    result
}

/// Visits the value at a place within the current container.
fn descend<'de, S: DeserializeSeed<'de>>(walk: &mut Walk, place: String, seed: S) -> Result<S::Value, Error> {
    visit(walk, place, |walker| seed.deserialize(walker))
}

/// Implements the requests for leaves. Each has its samples in order.
macro_rules! leaves {
    ($($request:ident: $kind:literal = $visit:ident $samples:expr;)+) => {
        $(fn $request<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let samples = $samples;
            self.leaf($kind, samples.len(), |refused| visitor.$visit(samples[refused]))
        })+
    };
}

impl<'de> Deserializer<'de> for Walker<'_> {
    type Error = Error;

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
        deserialize_identifier: "identifier" = visit_u64 [0];
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.walk.ask(&self.place, "option")?;
        match self.walk.is_recursive() {
            true => visitor.visit_none(),
            false => visit(self.walk, self.place + "?", |walker| visitor.visit_some(walker)),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf("unit", 1, |_| visitor.visit_unit())
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.leaf(name, 1, |_| visitor.visit_unit())
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.within(format!("{name}()"), type_name::<V::Value>(), |walk, name, _| {
            visit(walk, name.to_owned(), |walker| visitor.visit_newtype_struct(walker))
        })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.walk.ask(&self.place, "sequence")?;
        let length = usize::from(!self.walk.is_recursive());
        self.elements(length, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.walk.ask(&self.place, &format!("tuple of {length}"))?;
        self.elements(length, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.within(format!("{name}({length})"), type_name::<V::Value>(), |walk, name, _| {
            Walker { walk, place: name.to_owned() }.elements(length, visitor)
        })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.walk.ask(&self.place, "map")?;
        let length = usize::from(!self.walk.is_recursive());
        visitor.visit_map(Elements { walk: self.walk, place: self.place, next: 0, length })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.fields(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.within(format!("{name}<{}>", variants.join(",")), type_name::<V::Value>(), |walk, name, visits| {
            let container = walk.container(name);
            let known = container.readable.unwrap_or(visits.checked_rem(variants.len()).unwrap_or(0));
            let index = if visits > 0 || container.next >= variants.len() { known } else { container.next };
            let variant = *variants.get(index).ok_or_else(refusal)?;
            let place = format!("{name}.{variant}");
            let result = walk.explore(name, index, |walk| {
                visitor.visit_enum(Variant { name: variant, content: Walker { walk, place } })
            });
            if result.is_ok() {
                walk.readable(name, index);
            }
            result
        })
    }

    /// The value may be of any kind.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.walk.reads_any = true;
        self.leaf("any", 4, |refused| match refused {
            0 => visitor.visit_map(MapDeserializer::new(iter::empty::<((), ())>())),
            1 => visitor.visit_str(TEXTS[0]),
            2 => visitor.visit_u64(1),
            _ => visitor.visit_unit(),
        })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.walk.reads_any = true;
        visitor.visit_unit()
    }

    fn is_human_readable(&self) -> bool {
        self.walk.is_human_readable
    }
}

/// The fields of a struct, from one on. Without all fields no struct is made, but the fields from there on are
/// explored.
struct Fields<'w> {
    walk: &'w mut Walk,
    name: &'w str,
    fields: &'static [&'static str],
    next: usize,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.fields.get(self.next).map(|field| seed.deserialize(field.into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, index) = (self.name, self.next);
        self.next += 1;
        let place = format!("{name}.{}", self.fields.get(index).ok_or_else(refusal)?);
        self.walk.explore(name, index, |walk| descend(walk, place, seed))
    }
}

/// The elements of a sequence or of a tuple, or the entries of a map.
struct Elements<'w> {
    walk: &'w mut Walk,
    place: String,
    next: usize,
    length: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if self.next == self.length {
            return Ok(None);
        }
        let place = format!("{}.{}", self.place, self.next);
        self.next += 1;
        descend(self.walk, place, seed).map(Some)
    }
}

impl<'de> MapAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        if self.next == self.length {
            return Ok(None);
        }
        self.next += 1;
        descend(self.walk, format!("{} key", self.place), seed).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        descend(self.walk, format!("{}.value", self.place), seed)
    }

    /// Visits the value even if its key refuses all samples.
    fn next_entry_seed<K: DeserializeSeed<'de>, V: DeserializeSeed<'de>>(
        &mut self,
        key: K,
        value: V,
    ) -> Result<Option<(K::Value, V::Value)>, Error> {
        let key = self.next_key_seed(key);
        if let Ok(None) = key {
            return Ok(None);
        }
        let value = self.next_value_seed(value);
        Ok(key?.zip(Some(value?)))
    }
}

/// One variant of an enum.
struct Variant<'w> {
    name: &'static str,
    content: Walker<'w>,
}

impl<'de, 'w> EnumAccess<'de> for Variant<'w> {
    type Error = Error;
    type Variant = Walker<'w>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Walker<'w>), Error> {
        seed.deserialize(self.name.into_deserializer()).map(|name| (name, self.content))
    }
}

impl<'de> VariantAccess<'de> for Walker<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        self.walk.ask(&self.place, "unit")
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        descend(self.walk, self.place, seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        let name = self.place.clone();
        self.fields(&name, fields, visitor)
    }
}

/// Texts that types which validate accept: numbers, times, addresses, identifiers.
const TEXTS: [&str; 8] = [
    "1",
    "a",
    "http://a/",
    "1970-01-01T00:00:00Z",
    "1970-01-01",
    "00:00:00",
    "127.0.0.1",
    "00000000-0000-4000-8000-000000000001",
];
/// Bytes of such types: any bytes, and an identifier of 16 bytes.
const BYTES: [&[u8]; 2] = [b"1", &[1; 16]];
