//! Augmentation of images, which is a function of the seed, the epoch and the number of the sample alone.

use graphc_ir::random::{RandomStream, key_of};

/// The random augmentation of images, which is drawn anew in each epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Augment {
    /// The number of zeros that are added on each side of an image, before a part of the original size is cut out.
    pub pad: usize,
    /// Whether a random half of the images is mirrored, left to right.
    pub flip: bool,
}

/// The position at which an image is cut out, and whether it is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drawn {
    /// The first row and column, in the image with its zeros around.
    top: usize,
    left: usize,
    flip: bool,
    pad: usize,
}

impl Augment {
    /// No augmentation.
    pub const NONE: Self = Self { pad: 0, flip: false };
    /// The usual augmentation for images of 32 x 32: four zeros on each side, and mirroring.
    pub const CIFAR: Self = Self { pad: 4, flip: true };

    /// Draws the augmentation of a sample in an epoch.
    pub(crate) fn draw(self, seed: u64, epoch: u64, sample: usize) -> Drawn {
        let stream = RandomStream { seed, key: key_of("augment"), step: epoch };
        let [top, left, flip, _] = stream.words(sample as u64);
        let places = 2 * self.pad as u64 + 1;
        // The high part of the product is below `places`, evenly but for 2^-32 per place.
        let place = |word: u32| ((u64::from(word) * places) >> 32) as usize;
        let flip = self.flip && flip & 1 == 1;
        Drawn { top: place(top), left: place(left), flip, pad: self.pad }
    }
}

impl Drawn {
    /// Writes an augmented image of `[channels, height, width]` to `into`, which is as large as the image.
    pub(crate) fn apply(self, [_, height, width]: [usize; 3], image: &[u8], into: &mut [u8]) {
        let planes = image.chunks_exact((height * width).max(1));
        for (plane, target) in planes.zip(into.chunks_exact_mut((height * width).max(1))) {
            for (y, row) in target.chunks_exact_mut(width).enumerate() {
                let source = (y + self.top).checked_sub(self.pad).filter(|&y| y < height);
                match source {
                    Some(y) => self.transform_row(&plane[y * width..(y + 1) * width], row),
                    None => row.fill(0),
                }
            }
        }
    }

    fn transform_row(self, source: &[u8], target: &mut [u8]) {
        let width = source.len();
        // Column `x` of the target is `x + left - pad` of the source, where there is one.
        let first = self.pad.saturating_sub(self.left).min(width);
        let end = (width + self.pad).saturating_sub(self.left).min(width).max(first);
        target[..first].fill(0);
        target[end..].fill(0);
        if first < end {
            let from = first + self.left - self.pad;
            target[first..end].copy_from_slice(&source[from..from + end - first]);
        }
        if self.flip {
            target.reverse();
        }
    }
}

/// The mean and standard deviation of each channel, for images in `[0, 1]`. A single number stands for all channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    /// The numbers that are subtracted.
    pub mean: Vec<f32>,
    /// The numbers by which the difference is divided.
    pub std: Vec<f32>,
}

impl Normalize {
    /// Makes a normalization of these numbers.
    pub fn new(mean: &[f32], std: &[f32]) -> Self {
        Self { mean: mean.to_vec(), std: std.to_vec() }
    }

    /// Normalizes a value in `[0, 1]` of a channel.
    pub(crate) fn apply(&self, channel: usize, value: f32) -> f32 {
        let of = |numbers: &[f32]| numbers[if numbers.len() == 1 { 0 } else { channel }];
        (value - of(&self.mean)) / of(&self.std)
    }

    /// Whether there are numbers for this many channels, and it is possible to divide by the standard deviations.
    pub(crate) fn fits_channels(&self, channels: usize) -> bool {
        let counts = [self.mean.len(), self.std.len()];
        let good = |&std: &f32| std.is_finite() && std > 0.0;
        counts.iter().all(|&count| count == 1 || count == channels) && self.std.iter().all(good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: [usize; 3] = [2, 3, 4];

    /// Computes the augmentation pixel by pixel, by its definition.
    fn slow(drawn: Drawn, image: &[u8]) -> Vec<u8> {
        let [channels, height, width] = SHAPE;
        let mut result = Vec::new();
        for c in 0..channels {
            for y in 0..height {
                for x in 0..width {
                    let x = if drawn.flip { width - 1 - x } else { x };
                    let (y, x) = (y + drawn.top, x + drawn.left);
                    let inside = (drawn.pad..drawn.pad + height).contains(&y)
                        && (drawn.pad..drawn.pad + width).contains(&x);
                    let at = |y: usize, x: usize| (c * height + y) * width + x;
                    let pixel = inside.then(|| image[at(y - drawn.pad, x - drawn.pad)]);
                    result.push(pixel.unwrap_or(0));
                }
            }
        }
        result
    }

    #[test]
    fn images_are_cut_and_mirrored_as_defined() {
        let image: Vec<u8> = (1..=24).collect();
        for pad in [0, 1, 2, 6] {
            for (top, left) in (0..=2 * pad).flat_map(|y| (0..=2 * pad).map(move |x| (y, x))) {
                for flip in [false, true] {
                    let drawn = Drawn { top, left, flip, pad };
                    let mut result = vec![99; 24];
                    drawn.apply(SHAPE, &image, &mut result);
                    assert_eq!(result, slow(drawn, &image), "{drawn:?}");
                }
            }
        }
    }

    #[test]
    fn all_places_are_drawn_about_equally_often() {
        let augment = Augment { pad: 1, flip: true };
        let mut counts = [0; 18];
        for sample in 0..18_000 {
            let drawn = augment.draw(3, 5, sample);
            counts[drawn.top * 6 + drawn.left * 2 + usize::from(drawn.flip)] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn what_is_drawn_is_a_function_of_seed_epoch_and_sample() {
        let drawn = |seed, epoch, sample| Augment::CIFAR.draw(seed, epoch, sample);
        let of =
            |seed, epoch| (0..100).map(|sample| drawn(seed, epoch, sample)).collect::<Vec<_>>();
        assert_eq!(of(1, 2), of(1, 2));
        assert!(of(1, 2) != of(2, 2) && of(1, 2) != of(1, 3));
        let nothing = Drawn { top: 0, left: 0, flip: false, pad: 0 };
        assert!((0..100).all(|sample| Augment::NONE.draw(1, 2, sample) == nothing));
    }
}
