//! Textures: one for each class.

use graphc_ir::random::{RandomStream, key_of};

use crate::dataset::Split;

/// The number of classes.
pub(super) const CLASSES: usize = 10;

/// The number of blocks of four random words that a sample may draw: some for its scene, the others for noise.
const WORDS: u64 = 1 << 16;
const FIRST_NOISE: u64 = 16;
/// The bound of noise, up and down.
const NOISE: i32 = 16;

/// Whether a point of a class's texture has the first of its two colours. A mirrored texture is one of the same class.
fn is_first_colour(class: u8, x: u32, y: u32) -> bool {
    // A zigzag from 0 to 4 and back, every 8 points.
    let zigzag = |t: u32| (t % 8).abs_diff(4);
    let odd = |t: u32| t % 2 == 1;
    match class {
        0 => odd(y / 2),
        1 => odd(x / 2),
        2 => odd(x / 2 + y / 2),
        3 => odd(y / 4),
        4 => odd(x / 4),
        5 => odd(x / 4 + y / 4),
        6 => x % 6 < 2 || y % 6 < 2,
        7 => odd((y + zigzag(x)) / 2),
        8 => odd((x + zigzag(y)) / 2),
        _ => odd((zigzag(x) + zigzag(y)) / 2),
    }
}

/// Paints the images of a split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Painter {
    shape: [usize; 3],
    stream: RandomStream,
}

/// The content of an image, without noise.
struct Scene {
    class: u8,
    /// The square of the texture: its first row, first column and side.
    top: usize,
    left: usize,
    side: usize,
    /// The offset of the texture's pattern.
    phase: [u32; 2],
    /// For each channel: the colour around the square, and the two of the texture.
    colours: [[i32; 3]; 3],
}

/// Draws numbers for one sample.
struct Dice {
    stream: RandomStream,
    next: u64,
}

impl Dice {
    /// Draws a number from `range`.
    fn draw(&mut self, range: std::ops::Range<u32>) -> u32 {
        let [word, ..] = self.stream.words(self.next);
        self.next += 1;
        range.start + ((u64::from(word) * u64::from(range.end - range.start)) >> 32) as u32
    }
}

impl Painter {
    /// Makes a painter of images of `[channels, height, width]`, with up to 3 channels.
    pub(super) fn new(shape: [usize; 3], seed: u64, split: Split) -> Self {
        let step = u64::from(split == Split::Test);
        Self { shape, stream: RandomStream { seed, key: key_of("synthetic pictures"), step } }
    }

    /// Returns the class of a sample. Of each ten samples in a row, every class has one.
    pub(super) fn class(&self, sample: usize) -> u8 {
        let block = RandomStream { key: key_of("synthetic classes"), ..self.stream };
        let [turn, ..] = block.words((sample / CLASSES) as u64);
        ((sample + turn as usize) % CLASSES) as u8
    }

    /// Appends the pixels of a sample, channel after channel, row after row.
    pub(super) fn paint(&self, sample: usize, bytes: &mut Vec<u8>) {
        let [channels, height, width] = self.shape;
        let scene = self.draw_scene(sample);
        let first = sample as u64 * WORDS + FIRST_NOISE;
        let mut noise = [0; 16];
        for pixel in 0..channels * height * width {
            if pixel % noise.len() == 0 {
                let words = self.stream.words(first + (pixel / noise.len()) as u64);
                noise.copy_from_slice(words.map(u32::to_le_bytes).as_flattened());
            }
            let (channel, y, x) = (pixel / (height * width), pixel / width % height, pixel % width);
            let colour = scene.colour_at(channel, y, x);
            let noise = i32::from(noise[pixel % noise.len()]) * (2 * NOISE + 1) / 256 - NOISE;
            bytes.push((colour + noise).clamp(0, 255) as u8);
        }
    }

    fn draw_scene(&self, sample: usize) -> Scene {
        let [_, height, width] = self.shape;
        let mut dice = Dice { stream: self.stream, next: sample as u64 * WORDS };
        let most = height.min(width) as u32;
        let side = dice.draw(most / 2 + 4..most - 3);
        let top = dice.draw(0..height as u32 - side + 1) as usize;
        let left = dice.draw(0..width as u32 - side + 1) as usize;
        let phase = [dice.draw(0..24), dice.draw(0..24)];
        let up = dice.draw(0..2) == 0;
        let mut colours = [[0; 3]; 3];
        for channel in 0..self.shape[0] {
            let (middle, away) = (dice.draw(72..184) as i32, dice.draw(36..73) as i32);
            let away = if up { away } else { -away };
            let around = dice.draw(32..224) as i32;
            for (colour, of) in colours.iter_mut().zip([around, middle + away, middle - away]) {
                colour[channel] = of;
            }
        }
        Scene { class: self.class(sample), top, left, side: side as usize, phase, colours }
    }
}

impl Scene {
    fn colour_at(&self, channel: usize, y: usize, x: usize) -> i32 {
        let inside = |at: usize, first: usize| (first..first + self.side).contains(&at);
        let which = match inside(y, self.top) && inside(x, self.left) {
            false => 0,
            true => {
                let [across, down] = self.phase;
                1 + usize::from(is_first_colour(self.class, x as u32 + across, y as u32 + down))
            }
        };
        self.colours[which][channel]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all phases of a class's texture on 8 x 8 points.
    fn patches(class: u8, mirrored: bool) -> std::collections::BTreeSet<u64> {
        let patch = |dx: u32, dy: u32| {
            let bit = |i: u32| {
                let x = if mirrored { 7 - i % 8 } else { i % 8 };
                u64::from(is_first_colour(class, x + dx, i / 8 + dy)) << i
            };
            (0..64).map(bit).sum::<u64>()
        };
        let all = (0..24).flat_map(|dx| (0..24).map(move |dy| (dx, dy)));
        // Either colour may be the first.
        all.flat_map(|(dx, dy)| [patch(dx, dy), !patch(dx, dy)]).collect()
    }

    #[test]
    fn mirrored_textures_are_of_their_class_and_classes_share_none() {
        for class in 0..CLASSES as u8 {
            let own = patches(class, false);
            assert_eq!(own, patches(class, true), "class {class}");
            for other in 0..class {
                assert!(own.is_disjoint(&patches(other, false)), "classes {class} and {other}");
            }
        }
    }

    #[test]
    fn classes_are_of_equal_size() {
        let painter = Painter::new([3, 32, 32], 5, Split::Train);
        let mut counts = [0; CLASSES];
        (0..200).for_each(|sample| counts[usize::from(painter.class(sample))] += 1);
        assert_eq!(counts, [20; CLASSES]);
    }
}
