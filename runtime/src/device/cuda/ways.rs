//! The ways in which a product is made: by the library with its epilogue, by the library without it, with kernels behind the
//! product, and, where it refuses both, by kernels of graphc's own.
//!
//! The library's algorithms for the first two are tried when a plan is loaded (`trial`), those of the second with the kernels behind
//! them, and an action begins with the fastest. An algorithm that is refused later, at its first call, gives way to the next. So a
//! plan goes on if the library refuses a product, and also if there is no library.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use graphc_kernels::cuda::{
    Activation, Argument, Kernel, Launch, MatrixProduct, Summed, own_product, product_end,
};

use super::driver::{Loaded, Trouble};
use super::notes::add_note;
use super::product::{Described, Multiplier, ProductAddresses};
use super::site::LaunchSite;
use super::stream::CardStream;
use super::trial::{self, Trial};
use super::{CardShared, Cuda, choice};
use crate::device::call::Unprepared;
use crate::error::Cause;

/// The variable that, where it is 1, has notes say how products are made, and how long their algorithms took.
const VARIABLE: &str = "GRAPHC_PRODUCTS";
/// The note about what is done where the library is missing.
const INSTEAD: &str =
    "products of matrices are made by kernels of graphc's own instead, which are slower";

/// A product and the ways to make it.
pub(super) struct Ways {
    product: MatrixProduct,
    shared: Arc<CardShared>,
    /// The library's descriptions of it: with the epilogue, and without where there is one. Those that it refuses are not there.
    described: Vec<OfLibrary>,
    /// The index of the way that is taken, among all algorithms of all descriptions and our own kernels behind them.
    taken: Cell<usize>,
    /// Kernels that make the whole product.
    own: Kernels,
    /// Kernels behind a product that the library makes without its epilogue.
    end: Kernels,
}

/// A product by the library.
struct OfLibrary {
    described: Described,
    /// Whether it is all of the product.
    whole: bool,
}

impl OfLibrary {
    /// Returns the end of the note about its algorithms.
    fn note_suffix(&self) -> &'static str {
        if self.whole { "" } else { ", with a kernel for what stands behind it" }
    }
}

/// Kernels that are loaded with the plan where its first way needs them, and otherwise at the call that does, as most never are.
type Kernels = OnceCell<Vec<(Loaded, Vec<Argument>)>>;
/// The function that gives their launches.
type Make = fn(&MatrixProduct) -> Vec<Launch>;

impl Ways {
    /// Prepares the ways for a product. Where there are several algorithms the fastest is found. The kernels of the way that is
    /// taken are loaded with the plan's; without a card nothing says which way that is, and those of all are known.
    ///
    /// # Errors
    /// Where the card fails while algorithms are timed.
    pub(super) fn new(device: &Cuda, product: MatrixProduct) -> Result<Self, Unprepared> {
        let described = match device.has_card() {
            true => describe_all(&device.shared, &product),
            false => Vec::new(),
        };
        let (taken, shared) = (Cell::new(0), Arc::clone(&device.shared));
        let (own, end) = (OnceCell::new(), OnceCell::new());
        let ways = Self { product, shared, described, taken, own, end };
        match device.has_card() {
            true => ways.prepare_first_way(device)?,
            false => ways.load_all(device),
        }
        Ok(ways)
    }

    /// Finds the way to begin with, and has its kernels loaded.
    fn prepare_first_way(&self, device: &Cuda) -> Result<(), Unprepared> {
        self.taken.set(self.choose_way(device)?);
        if is_told() {
            add_note(format!("{self} is made {}", self.way_taken()));
        }
        if let Some((kernels, make)) = self.kernels_of_way(self.find_way(self.taken.get())) {
            self.request_kernels(device, kernels, make);
        }
        Ok(())
    }

    /// Has the kernels of all ways loaded.
    fn load_all(&self, device: &Cuda) {
        self.request_kernels(device, &self.own, own_product);
        if self.product.without_epilogue() != self.product {
            self.request_kernels(device, &self.end, product_end);
        }
    }

    /// Has kernels loaded with the plan's.
    fn request_kernels(&self, device: &Cuda, kernels: &Kernels, make: Make) {
        let load = |kernel: Kernel| (device.request_kernel(&kernel), kernel.arguments);
        let _ = kernels
            .set(make(&self.product).into_iter().filter_map(kernel_of_launch).map(load).collect());
    }

    /// Returns the number of algorithms of all descriptions.
    fn count_algorithms(&self) -> usize {
        self.described.iter().map(|one| one.described.count_algorithms()).sum()
    }

    /// Finds the way of this number, with an algorithm; none behind the last.
    fn find_way(&self, mut number: usize) -> Option<(&OfLibrary, usize)> {
        self.described.iter().find_map(|one| match number < one.described.count_algorithms() {
            true => Some((one, number)),
            false => {
                number -= one.described.count_algorithms();
                None
            }
        })
    }

    /// Chooses the number of the way to begin with.
    fn choose_way(&self, device: &Cuda) -> Result<usize, Unprepared> {
        let (count, Some(card)) = (self.count_algorithms(), &device.card) else { return Ok(0) };
        if count < 2 || !choice::is_measured() {
            return Ok(0);
        }
        let key = choice::choice_key(card, &self.product, count);
        let chosen = choice::find_choice(&key, count, || self.find_fastest());
        chosen.map_err(|trouble| Unprepared::Device(trouble.to_string()))
    }

    /// Finds the fastest algorithm of all, with the kernels behind it; `None` where none could be tried.
    ///
    /// # Errors
    /// Where the card has failed.
    fn find_fastest(&self) -> Result<Option<usize>, Trouble> {
        let Ok(multiplier) = self.shared.multiplier() else { return Ok(None) };
        let Some(trial) = Trial::new(self.shared.context()?, &self.product)? else {
            return Ok(None);
        };
        let mut times: Vec<Option<Duration>> = Vec::new();
        for one in &self.described {
            let count = one.described.count_algorithms();
            let behind = match self.kernels_of_way(Some((one, 0))) {
                Some((kernels, make)) => self.load_if_needed(kernels, make),
                None => Ok(&[][..]),
            };
            let behind = match behind {
                Ok(behind) => behind,
                // Nothing is chosen for good where not all ways can be had.
                Err(error) => {
                    add_note(format!("{self}: kernels behind it cannot be had: {error}"));
                    return Ok(None);
                }
            };
            let time = |number| trial.time_algorithm(multiplier, (&one.described, number), behind);
            let found: Vec<Option<Duration>> = (0..count).map(time).collect::<Result<_, _>>()?;
            if is_told() {
                let (end, told) = (one.note_suffix(), trial::format_times(&found));
                add_note(format!("{self}: algorithms of cuBLASLt{end} take {told} us"));
            }
            times.extend(found);
        }
        Ok(trial::find_fastest(&times))
    }

    /// Makes the product.
    pub(super) fn run(&self, stream: &mut CardStream, site: &LaunchSite<'_>) -> Result<(), Cause> {
        let places = self.product_addresses(stream, site);
        let mut way = self.find_way(self.taken.get());
        while let Some((one, algorithm)) = way {
            let multiplier = self.shared.multiplier().map_err(|e| Cause::Device(e.to_string()))?;
            let Err(refusal) = stream.multiply(multiplier, (&one.described, algorithm), places)?
            else {
                break;
            };
            self.taken.set(self.taken.get() + 1);
            way = self.find_way(self.taken.get());
            add_note(format!(
                "cuBLASLt refuses {self} by an algorithm that it gave: {refusal}; it is made {}",
                self.way_taken()
            ));
        }
        let Some((kernels, make)) = self.kernels_of_way(way) else { return Ok(()) };
        let loaded = self.load_if_needed(kernels, make).map_err(Cause::Device)?;
        loaded.iter().try_for_each(|(loaded, arguments)| site.launch(stream, *loaded, arguments))
    }

    /// Returns the kernels of a way, behind the library's or in its place, and what they are made by.
    fn kernels_of_way(&self, way: Option<(&OfLibrary, usize)>) -> Option<(&Kernels, Make)> {
        match way {
            Some((one, _)) if one.whole => None,
            Some(_) => Some((&self.end, product_end)),
            None => Some((&self.own, own_product)),
        }
    }

    /// Kernels that are loaded, at once where it was not known that they are needed.
    fn load_if_needed<'k>(
        &self,
        kernels: &'k Kernels,
        make: Make,
    ) -> Result<&'k [(Loaded, Vec<Argument>)], String> {
        if kernels.get().is_none() {
            let load = |kernel: Kernel| Ok((self.shared.load_at_once(&kernel)?, kernel.arguments));
            let loaded = make(&self.product).into_iter().filter_map(kernel_of_launch).map(load);
            let _ = kernels.set(loaded.collect::<Result<_, String>>()?);
        }
        Ok(kernels.get().map(Vec::as_slice).unwrap_or_default())
    }

    /// Returns the way that is taken, for a message.
    fn way_taken(&self) -> String {
        match self.find_way(self.taken.get()) {
            None => "by a kernel of graphc's own".to_owned(),
            Some((one, number)) => {
                let (number, count) = (number + 1, one.described.count_algorithms());
                format!("by algorithm {number} of {count} of cuBLASLt{}", one.note_suffix())
            }
        }
    }

    fn product_addresses(&self, stream: &CardStream, site: &LaunchSite<'_>) -> ProductAddresses {
        let MatrixProduct { operands, epilogue, .. } = &self.product;
        let address = |place| site.address(place, stream);
        let [a, b, out] = [operands.a, operands.b, operands.out].map(address);
        let [added, vector, kept] =
            [epilogue.added, epilogue.vector(), epilogue.kept].map(|p| p.map(address));
        ProductAddresses { a, b, out, added, vector, kept }
    }
}

/// Whether all of a product is made in one way, as far as that is known when a plan is loaded: by the library with its end, or where it
/// makes none of it by kernels of our own.
pub(super) fn is_made_whole(shared: &CardShared, product: &MatrixProduct) -> bool {
    let Ok(multiplier) = shared.multiplier() else { return true };
    let takes = |product: &MatrixProduct| multiplier.describe_product(product).is_ok();
    takes(product) || !takes(&product.without_epilogue())
}

/// Returns the descriptions of a product, none where the library is missing.
fn describe_all(shared: &CardShared, product: &MatrixProduct) -> Vec<OfLibrary> {
    match shared.multiplier() {
        Ok(multiplier) => describe_supported(multiplier, product),
        Err(error) => {
            add_note(format!("{error}; {INSTEAD}"));
            Vec::new()
        }
    }
}

/// Returns the descriptions of a product that the library has an algorithm for.
fn describe_supported(multiplier: &Multiplier, product: &MatrixProduct) -> Vec<OfLibrary> {
    let describe = |product: &MatrixProduct, whole| {
        let described = multiplier.describe_product(product).ok()?;
        Some(OfLibrary { described, whole })
    };
    let plain = product.without_epilogue();
    let ended = if plain == *product { None } else { describe(&plain, false) };
    describe(product, true).into_iter().chain(ended).collect()
}

fn kernel_of_launch(launch: Launch) -> Option<Kernel> {
    match launch {
        Launch::Kernel(kernel) => Some(kernel),
        Launch::Product(_) | Launch::Clear { .. } | Launch::Copy { .. } => None,
    }
}

/// For messages.
impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MatrixProduct { rows, inner, columns, batch, ref operands, ref epilogue, .. } =
            self.product;
        let turned = |turned: bool| if turned { " transposed" } else { "" };
        let [a, b] = [self.product.a, self.product.b].map(|matrix| turned(matrix.by_columns));
        write!(f, "a product of {} {rows} x {inner}{a} by {inner} x {columns}{b}", operands.dtype)?;
        if batch > 1 {
            write!(f, ", {batch} in a row")?;
        }
        if epilogue.added.is_some() {
            f.write_str(", with a summand")?;
        }
        if epilogue.bias.is_some() {
            f.write_str(", with a bias")?;
        }
        f.write_str(match (epilogue.activation, epilogue.kept.is_some()) {
            (Activation::None, _) => "",
            (Activation::Relu, _) => ", with ReLU",
            (Activation::GeluTanh, false) => ", with GELU",
            (Activation::GeluTanh, true) => ", with GELU and what it is taken of",
            (Activation::GeluTanhGrad, _) => ", with the gradient of GELU",
        })?;
        f.write_str(match epilogue.sums {
            None => "",
            Some((Summed::Result, _)) => ", with sums of its columns",
            Some((Summed::First | Summed::Second, _)) => ", with sums of a factor",
        })
    }
}

/// Whether notes say how products are made.
fn is_told() -> bool {
    std::env::var(VARIABLE).is_ok_and(|text| text == "1")
}
