//! Random draws.

use crate::load::{Load, Time};
use fastrand::Rng;

/// Draws keys by Zipf's law: the k-th key is requested in proportion to 1/k^s. Vose's alias method needs two draws for
/// any number of keys.
pub(crate) struct Popularity {
    share: Vec<f64>,
    /// For each slot of the alias table: below the height the slot's own key, above it the other key.
    places: Vec<(f64, u32)>,
}

impl Popularity {
    pub(crate) fn new(keys: u32, exponent: f64) -> Self {
        let mut share: Vec<f64> = (1..=keys).map(|rank| f64::from(rank).powf(-exponent)).collect();
        let sum: f64 = share.iter().sum();
        share.iter_mut().for_each(|share| *share /= sum);

        let mut heights: Vec<f64> = share.iter().map(|share| share * f64::from(keys)).collect();
        let mut places: Vec<(f64, u32)> = (0..keys).map(|key| (1.0, key)).collect();
        let (mut low, mut high): (Vec<u32>, Vec<u32>) = (0..keys).partition(|key| heights[*key as usize] < 1.0);
        while let (Some(under), Some(&over)) = (low.pop(), high.last()) {
            places[under as usize] = (heights[under as usize], over);
            heights[over as usize] -= 1.0 - heights[under as usize];
            if heights[over as usize] < 1.0 {
                low.extend(high.pop());
            }
        }
        Self { share, places }
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> u32 {
        let place = rng.u32(..self.places.len() as u32);
        let (height, other) = self.places[place as usize];
        if rng.f64() < height { place } else { other }
    }

    /// Returns the share of all requests that is for this key.
    pub(crate) fn share(&self, key: u32) -> f64 {
        self.share[key as usize]
    }
}

/// Draws the time until the next event, for events with this mean interval. In nanoseconds.
pub(crate) fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -(1.0 - rng.f64()).ln() * mean
}

/// Draws the duration of one fetch: log-normal, with the configured mean.
pub(crate) fn computation(rng: &mut Rng, load: &Load) -> Time {
    let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos();
    let factor = (load.spread * normal - load.spread * load.spread / 2.0).exp();
    (load.compute * crate::load::MILLISECOND * factor) as Time
}

/// Returns how many of `n` do something that each does with probability `likely`: the mean, rounded up or down at
/// random.
pub(crate) fn about(rng: &mut Rng, n: u32, likely: f64) -> u32 {
    let mean = f64::from(n) * likely;
    mean as u32 + u32::from(rng.f64() < mean.fract())
}

/// Mirrors `backoff::poll`.
pub(crate) fn poll(rng: &mut Rng, asked: u32, registered: bool) -> Time {
    let most = if registered { 1_000.0 } else { (50.0 * 1.6_f64.powi(asked.min(16) as i32)).min(500.0) };
    (most * crate::load::MILLISECOND * (0.5 + 0.5 * rng.f64())) as Time
}

/// Mirrors `backoff::after_expiry`.
pub(crate) fn after_expiry(rng: &mut Rng, waiting: usize) -> Time {
    let spread = (1.0 + (waiting / 4) as f64).min(250.0);
    ((1.0 + spread * rng.f64()) * crate::load::MILLISECOND) as Time
}
