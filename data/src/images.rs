//! Folders of images, with a folder for each class.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use graphc_host::data::open_file;
use graphc_ir::types::{DType, TensorType};
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits};

use crate::dataset::{Dataset, Field, FieldKind, Split};
use crate::error::DatasetError;

const LAYOUT: &str = "a set of images is a folder with train/CLASS/NAME.png and test/CLASS/NAME.png (or val; .jpg, .jpeg too), or with \
                      CLASS/NAME.png, where every tenth image of a class is held out";
/// The most pixels that an image may have: a JPEG of some hundred bytes may be of any number, and decoding so many takes seconds.
const MOST_PIXELS: u64 = 1 << 27;
/// Bytes of memory for a pixel while an image is decoded: four channels of two bytes, before and after filters.
const PIXEL_BYTES: u64 = 16;
/// The most bytes of memory that an image's data beside its pixels may take, such as a colour profile.
const MOST_BESIDE: u64 = 16 << 20;
/// The share of images that is held out if there is no folder for that: one in this many images of each class.
const HELD_OUT: usize = 10;

/// Images of one size, scaled to cover it and cut in the middle: fields `images`, `u8[channels, height, width]`, and `labels`, `i64[]`. Classes are
/// numbered in the order of their folders' names.
#[derive(Debug)]
pub struct ImageFolder {
    name: String,
    fields: [Field; 2],
    shape: [usize; 3],
    images: Vec<(PathBuf, usize)>,
    classes: Vec<String>,
}

impl ImageFolder {
    /// Opens the images of a split, which are given the shape `[channels, height, width]`, with 1 channel (grey) or 3. They are decoded when they are
    /// read.
    ///
    /// # Errors
    /// Returns an error if there are no images, or if the held-out ones have a class that is not trained on.
    pub fn open(folder: &Path, split: Split, shape: [usize; 3]) -> Result<Self, DatasetError> {
        let name = format!("images:{} ({split})", folder.display());
        if !matches!(shape[0], 1 | 3) || shape.contains(&0) {
            let text =
                format!("{name}: images cannot be {shape:?} large: they have 1 channel or 3");
            return Err(DatasetError::Loader(text));
        }
        let fields = [
            Field::new("images", TensorType::new(DType::U8, shape), FieldKind::Image),
            Field::new("labels", TensorType::new(DType::I64, []), FieldKind::Labels),
        ];
        let (classes, images) = list_images(folder, split)?;
        Ok(Self { name, fields, shape, images, classes })
    }

    /// Returns the names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    fn decode_image(&self, path: &Path, into: &mut [u8]) -> Result<(), DatasetError> {
        let name = path.display().to_string();
        let damaged = |reason: String| {
            let path = name.clone();
            DatasetError::Damaged { path, reason, layout: LAYOUT }
        };
        let undecoded = |error: ImageError| damaged(error.to_string());
        // What its head takes is bounded first: a few bytes may unpack to anything.
        let mut decoder = open_reader(path)?.into_decoder().map_err(undecoded)?;
        let (wide, high) = decoder.dimensions();
        let pixels = u64::from(wide) * u64::from(high);
        let [channels, height, width] = self.shape;
        // It is scaled to cover what is wanted before the middle is cut out: of what is narrow that makes something long.
        let scale = (width as f64 / f64::from(wide)).max(height as f64 / f64::from(high));
        let scaled = pixels as f64 * scale.max(1.0).powi(2);
        if pixels > MOST_PIXELS || scaled > MOST_PIXELS as f64 {
            let reason = format!(
                "it is {wide} x {high} pixels, and {scaled:.0} where it covers {width} x {height}"
            );
            return Err(damaged(format!("{reason}, of at most {MOST_PIXELS}")));
        }
        let mut limits = at_most(MOST_BESIDE + pixels * PIXEL_BYTES);
        limits.reserve(decoder.total_bytes()).map_err(undecoded)?;
        decoder.set_limits(limits).map_err(undecoded)?;
        let image = DynamicImage::from_decoder(decoder).map_err(undecoded)?;
        let image = image.resize_to_fill(width as u32, height as u32, FilterType::Triangle);
        let pixels =
            if channels == 1 { image.to_luma8().into_raw() } else { image.to_rgb8().into_raw() };
        for (channel, plane) in into.chunks_exact_mut(height * width).enumerate() {
            let values = pixels.iter().skip(channel).step_by(channels);
            plane.iter_mut().zip(values).for_each(|(to, &from)| *to = from);
        }
        Ok(())
    }
}

/// Opens a reader of an image. It bounds the memory of data beside the pixels, such as a colour profile, because a few bytes may unpack to any size.
fn open_reader(path: &Path) -> Result<ImageReader<BufReader<File>>, DatasetError> {
    let fail =
        |error: std::io::Error| DatasetError::unreadable_file(&path.display().to_string(), error);
    let file = open_file(path).map_err(fail)?;
    let mut reader = ImageReader::new(BufReader::new(file)).with_guessed_format().map_err(fail)?;
    reader.limits(at_most(MOST_BESIDE));
    Ok(reader)
}

/// Returns limits of this many bytes of memory.
fn at_most(bytes: u64) -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(bytes);
    limits
}

impl Dataset for ImageFolder {
    fn name(&self) -> &str {
        &self.name
    }

    fn samples(&self) -> usize {
        self.images.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn read(&self, sample: usize, field: usize, into: &mut [u8]) -> Result<(), DatasetError> {
        let (path, class) = &self.images[sample];
        if field == 0 {
            // The decoders panic at some damaged files.
            let decoded = std::panic::AssertUnwindSafe(|| self.decode_image(path, into));
            return std::panic::catch_unwind(decoded)
                .unwrap_or_else(|_| Err(undecodable_error(path)));
        }
        into.copy_from_slice(&(*class as i64).to_ne_bytes());
        Ok(())
    }
}

fn undecodable_error(path: &Path) -> DatasetError {
    let reason =
        "the library of images cannot handle it; save it again with another program".into();
    DatasetError::Damaged { path: path.display().to_string(), reason, layout: LAYOUT }
}

/// The names of the classes, and the images of a split with the number of their class.
type Listed = (Vec<String>, Vec<(PathBuf, usize)>);

fn list_images(folder: &Path, split: Split) -> Result<Listed, DatasetError> {
    let train = folder.join("train");
    let test = ["test", "val"].map(|name| folder.join(name)).into_iter().find(|f| f.is_dir());
    let (apart, own) = match (train.is_dir(), split) {
        (false, _) => (false, folder.to_owned()),
        (true, Split::Train) => (true, train.clone()),
        (true, Split::Test) => (true, test.ok_or_else(|| missing_error(&folder.join("test")))?),
    };
    let classes = list_names(if apart { &train } else { folder }, Path::is_dir)?;
    let mut images = Vec::new();
    for class in list_names(&own, Path::is_dir)? {
        let Some(number) = classes.iter().position(|known| *known == class) else {
            return Err(missing_error(&train.join(class)));
        };
        let within = own.join(class);
        for (place, file) in list_names(&within, is_image)?.into_iter().enumerate() {
            let held_out = place % HELD_OUT == HELD_OUT - 1;
            if apart || held_out == (split == Split::Test) {
                images.push((within.join(file), number));
            }
        }
    }
    if images.is_empty() {
        return Err(missing_error(&own.join("CLASS/NAME.png")));
    }
    Ok((classes, images))
}

fn missing_error(path: &Path) -> DatasetError {
    DatasetError::Missing { path: path.display().to_string(), layout: LAYOUT }
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
    extension
        .is_some_and(|extension| ["png", "jpg", "jpeg"].iter().any(|known| extension == *known))
}

/// Lists the names of the entries of a folder for which `wanted` holds, in order and without hidden ones.
fn list_names(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<String>, DatasetError> {
    let fail = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => missing_error(folder),
        _ => DatasetError::unreadable_file(&folder.display().to_string(), error),
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|name| !name.starts_with('.') && wanted(&path)) {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use image::{Rgb, RgbImage};

    use super::*;

    fn save(path: PathBuf, width: u32, height: u32, colour: [u8; 3]) {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        RgbImage::from_pixel(width, height, Rgb(colour)).save(path).expect("writable");
    }

    fn sample(set: &ImageFolder, index: usize) -> (Vec<u8>, i64) {
        let (mut image, mut label) = (vec![0; set.fields()[0].ty.bytes()], [0; 8]);
        set.read(index, 0, &mut image).expect("it is whole");
        set.read(index, 1, &mut label).expect("it is there");
        (image, i64::from_ne_bytes(label))
    }

    #[test]
    fn what_the_decoder_panics_at_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("train/a/short.png");
        save(path.clone(), 1, 1, [0; 3]);
        // A palette of two bytes.
        let short = include_bytes!("../../benchmarks/fuzz/found/images/short_palette.png");
        std::fs::write(path, short).expect("writable");
        let set = ImageFolder::open(folder.path(), Split::Train, [3, 2, 2]).expect("a set");
        let error = set.read(0, 0, &mut [0; 12]).expect_err("it is damaged").to_string();
        assert!(error.contains("short.png is damaged"), "{error}");
    }

    #[test]
    fn images_are_scaled_and_classes_numbered_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        save(folder.path().join("train/dog/a.png"), 9, 5, [10, 20, 30]);
        save(folder.path().join("train/cat/b.jpg"), 4, 8, [200, 200, 200]);
        save(folder.path().join("val/dog/c.PNG"), 2, 2, [1, 2, 3]);
        let train = ImageFolder::open(folder.path(), Split::Train, [3, 4, 4]).expect("a set");
        assert_eq!((train.classes(), train.samples()), (&["cat".to_owned(), "dog".into()][..], 2));
        let (image, label) = sample(&train, 1);
        assert_eq!((image, label), ([[10; 16], [20; 16], [30; 16]].concat(), 1));
        assert!(sample(&train, 0).0.iter().all(|pixel| pixel.abs_diff(200) < 3));
        let test = ImageFolder::open(folder.path(), Split::Test, [1, 2, 2]).expect("a set");
        assert_eq!((test.samples(), sample(&test, 0).1), (1, 1));
    }

    #[test]
    fn every_tenth_is_held_out_where_no_folder_is() {
        let folder = tempfile::tempdir().expect("a folder");
        (0..20).for_each(|i| save(folder.path().join(format!("a/{i:02}.png")), 1, 1, [i; 3]));
        let open = |split| ImageFolder::open(folder.path(), split, [1, 1, 1]).expect("a set");
        let all =
            |set: ImageFolder| (0..set.samples()).map(|i| sample(&set, i).0[0]).collect::<Vec<_>>();
        assert_eq!(all(open(Split::Test)), [9, 19]);
        assert_eq!(all(open(Split::Train)).len(), 18);
    }

    /// Makes a chunk of a PNG file.
    fn chunk(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let mut sum = flate2::Crc::new();
        sum.update(kind);
        sum.update(content);
        let length = (content.len() as u32).to_be_bytes();
        [&length[..], kind, content, &sum.sum().to_be_bytes()].concat()
    }

    /// Makes a PNG file of this size, with a chunk behind its head and no data of pixels.
    fn png(width: u32, height: u32, second: &[u8]) -> Vec<u8> {
        let head = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
        let parts = [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &head), second.to_vec()];
        [parts.concat(), chunk(b"IDAT", &[]), chunk(b"IEND", &[])].concat()
    }

    /// Makes an image of an unreasonable number of pixels.
    fn large() -> Vec<u8> {
        png(1 << 20, 1 << 20, &[])
    }

    /// Makes an image whose colour profile unpacks to 64 MiB.
    fn profiled() -> Vec<u8> {
        let packed = Vec::from(*b"icc\0\0");
        let mut packer = flate2::write::ZlibEncoder::new(packed, flate2::Compression::fast());
        let block = vec![0; 1 << 20];
        (0..64).for_each(|_| std::io::Write::write_all(&mut packer, &block).expect("memory"));
        png(3, 3, &chunk(b"iCCP", &packer.finish().expect("memory")))
    }

    #[test]
    fn missing_and_damaged_images_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |path: &Path, split| ImageFolder::open(path, split, [3, 4, 4]);
        let text = |path: &Path, split| open(path, split).expect_err("missing").to_string();
        assert!(text(folder.path(), Split::Train).contains("CLASS/NAME.png is not there: a set"));
        assert!(text(Path::new("/nowhere"), Split::Train).contains("/nowhere is not there"));
        save(folder.path().join("train/a/x.png"), 3, 3, [1; 3]);
        assert!(text(folder.path(), Split::Test).contains("test is not there"));
        save(folder.path().join("test/b/x.png"), 3, 3, [1; 3]);
        assert!(text(folder.path(), Split::Test).contains("train/b is not there"));
        let path = folder.path().join("train/a/x.png");
        let whole = std::fs::read(&path).expect("it is there");
        let narrow = png(1, 1 << 27, &[]);
        for content in [&whole[..whole.len() / 2], &large(), &narrow, &profiled(), b"", b"no image"]
        {
            std::fs::write(&path, content).expect("writable");
            let set = open(folder.path(), Split::Train).expect("a set");
            let error = set.read(0, 0, &mut [0; 48]).expect_err("damaged").to_string();
            assert!(error.contains("train/a/x.png is damaged"), "{error}");
        }
        ImageFolder::open(folder.path(), Split::Train, [2, 4, 4]).expect_err("two channels");
    }
}
