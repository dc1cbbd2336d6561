//! Folders of images: a folder for each class.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use graphc_ir::types::{DType, TensorType};
use graphc_runtime::data::open_file;
use image::ImageReader;
use image::imageops::FilterType;

use crate::dataset::{Dataset, Field, FieldKind, Split};
use crate::error::DatasetError;

const LAYOUT: &str = "a set of images is a folder with train/CLASS/NAME.png and test/CLASS/NAME.png (or val; .jpg, .jpeg too), or with \
                      CLASS/NAME.png, where every tenth image of a class is held out";
/// Every so many-th image of a class is held out where there is no folder for that.
const HELD_OUT: usize = 10;

/// Images of one size, scaled to cover it and cut in the middle: fields `images`, `u8[channels, height, width]`, and `labels`,
/// `i64[]`. Classes are numbered in the order of their folders' names.
#[derive(Debug)]
pub struct ImageFolder {
    name: String,
    fields: [Field; 2],
    shape: [usize; 3],
    images: Vec<(PathBuf, usize)>,
    classes: Vec<String>,
}

impl ImageFolder {
    /// The images of a split, made `[channels, height, width]` large, with 1 channel (grey) or 3. They are decoded as they are
    /// read.
    ///
    /// # Errors
    /// Where there are no images, or the held-out ones have a class that is not trained on.
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
        let (classes, images) = listed(folder, split)?;
        Ok(Self { name, fields, shape, images, classes })
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    fn decode(&self, path: &Path, into: &mut [u8]) -> Result<(), DatasetError> {
        let name = path.display().to_string();
        let file = open_file(path).map_err(|error| DatasetError::read(&name, error))?;
        let reader = ImageReader::new(BufReader::new(file)).with_guessed_format();
        let reader = reader.map_err(|error| DatasetError::read(&name, error))?;
        let image = reader.decode().map_err(|error| DatasetError::Damaged {
            path: name.clone(),
            reason: error.to_string(),
            layout: LAYOUT,
        })?;
        let [channels, height, width] = self.shape;
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
            let decoded = std::panic::AssertUnwindSafe(|| self.decode(path, into));
            return std::panic::catch_unwind(decoded).unwrap_or_else(|_| Err(undecodable(path)));
        }
        into.copy_from_slice(&(*class as i64).to_ne_bytes());
        Ok(())
    }
}

fn undecodable(path: &Path) -> DatasetError {
    let reason =
        "the library of images cannot handle it; save it again with another program".into();
    DatasetError::Damaged { path: path.display().to_string(), reason, layout: LAYOUT }
}

/// Classes, and the images of a split with their class.
type Listed = (Vec<String>, Vec<(PathBuf, usize)>);

fn listed(folder: &Path, split: Split) -> Result<Listed, DatasetError> {
    let train = folder.join("train");
    let test = ["test", "val"].map(|name| folder.join(name)).into_iter().find(|f| f.is_dir());
    let (apart, own) = match (train.is_dir(), split) {
        (false, _) => (false, folder.to_owned()),
        (true, Split::Train) => (true, train.clone()),
        (true, Split::Test) => (true, test.ok_or_else(|| missing(&folder.join("test")))?),
    };
    let classes = names(if apart { &train } else { folder }, Path::is_dir)?;
    let mut images = Vec::new();
    for class in names(&own, Path::is_dir)? {
        let Some(number) = classes.iter().position(|known| *known == class) else {
            return Err(missing(&train.join(class)));
        };
        let within = own.join(class);
        for (place, file) in names(&within, is_image)?.into_iter().enumerate() {
            let held_out = place % HELD_OUT == HELD_OUT - 1;
            if apart || held_out == (split == Split::Test) {
                images.push((within.join(file), number));
            }
        }
    }
    if images.is_empty() {
        return Err(missing(&own.join("CLASS/NAME.png")));
    }
    Ok((classes, images))
}

fn missing(path: &Path) -> DatasetError {
    DatasetError::Missing { path: path.display().to_string(), layout: LAYOUT }
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
    extension
        .is_some_and(|extension| ["png", "jpg", "jpeg"].iter().any(|known| extension == *known))
}

/// The names of what is in a folder and wanted, in order.
fn names(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<String>, DatasetError> {
    let fail = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => missing(folder),
        _ => DatasetError::read(&folder.display().to_string(), error),
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
        for content in [&whole[..whole.len() / 2], b"no image", b""] {
            std::fs::write(&path, content).expect("writable");
            let set = open(folder.path(), Split::Train).expect("a set");
            let error = set.read(0, 0, &mut [0; 48]).expect_err("damaged").to_string();
            assert!(error.contains("train/a/x.png is damaged"), "{error}");
        }
        ImageFolder::open(folder.path(), Split::Train, [2, 4, 4]).expect_err("two channels");
    }
}
