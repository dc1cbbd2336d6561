//! The ways in which a product is made, of which the first is taken that is not refused: by the library with its epilogue, by the library
//! without it, with a kernel behind the product, and by a kernel of our own.
//!
//! The library's algorithms for the first two are tried when a plan is loaded (`trial`), and the fastest of a way is where an action begins. An
//! algorithm that is refused later, at its first call, gives way to the next. So nothing that the library refuses, and not that it is
//! missing, ends a plan.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use graphc_kernels::cuda::{
    Activation, Argument, Launch, Product, Summed, own_product, product_end,
};

use super::driver::Loaded;
use super::product::{Described, Factors, Multiplier};
use super::site::Site;
use super::stream::Stream;
use super::trial::{self, Trial};
use super::{Cuda, Shared, choice};
use crate::device::call::Unprepared;
use crate::error::Cause;

/// Where it is 1 it is said on standard error how products are made, and how long their algorithms took.
const VARIABLE: &str = "GRAPHC_PRODUCTS";
/// What is done where the library is missing.
const INSTEAD: &str =
    "products of matrices are made by kernels of graphc's own instead, which are slower";

/// A product and the ways to make it.
pub(super) struct Ways {
    product: Product,
    shared: Arc<Shared>,
    /// The library's descriptions of it: with the epilogue, and without where there is one. Those that it refuses are not there.
    described: Vec<OfLibrary>,
    /// Which way is taken, among all algorithms of all descriptions and our own kernels behind them.
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

/// Kernels that are compiled and loaded when it is known that they are needed, as most never are.
type Kernels = OnceCell<Vec<(Loaded, Vec<Argument>)>>;
/// What gives their launches.
type Make = fn(&Product) -> Vec<Launch>;

impl Ways {
    /// The ways for a product. Where there are several algorithms the fastest is found.
    ///
    /// # Errors
    /// Where kernels of our own are needed and cannot be loaded.
    pub(super) fn new(device: &Cuda, product: Product) -> Result<Self, Unprepared> {
        let shared = Arc::clone(&device.shared);
        let described = match shared.multiplier() {
            Ok(multiplier) => describe(multiplier, &product),
            Err(error) => {
                say(format!("{error}; {INSTEAD}"));
                Vec::new()
            }
        };
        let taken = Cell::new(0);
        let (own, end) = (OnceCell::new(), OnceCell::new());
        let ways = Self { product, shared, described, taken, own, end };
        ways.taken.set(ways.choose(device));
        if is_told() {
            say(format!("{ways} is made {}", ways.way_taken()));
        }
        if let Some((kernels, make)) = ways.kernels(ways.way(ways.taken.get())) {
            ways.loaded(kernels, make).map_err(Unprepared::Device)?;
        }
        Ok(ways)
    }

    /// How many algorithms there are.
    fn count(&self) -> usize {
        self.described.iter().map(|one| one.described.algorithms()).sum()
    }

    /// The way of this number, with an algorithm; none behind the last.
    fn way(&self, mut number: usize) -> Option<(&OfLibrary, usize)> {
        self.described.iter().find_map(|one| match number < one.described.algorithms() {
            true => Some((one, number)),
            false => {
                number -= one.described.algorithms();
                None
            }
        })
    }

    /// The number of the way to begin with.
    fn choose(&self, device: &Cuda) -> usize {
        let count = self.count();
        if count < 2 || !choice::is_measured() {
            return 0;
        }
        let Some(card) = &device.card else { return 0 };
        let key = choice::key(card, &self.product, count);
        choice::chosen(&key, count, || self.fastest())
    }

    /// The fastest algorithm of the first description of which one is not refused; `None` where none could be tried.
    fn fastest(&self) -> Option<usize> {
        let multiplier = self.shared.multiplier().ok()?;
        let trial = Trial::new(self.shared.context().ok()?, &self.product).ok()?;
        let mut first = 0;
        for one in &self.described {
            let count = one.described.algorithms();
            let time = |number| trial.time(multiplier, (&one.described, number));
            let times: Vec<Option<Duration>> =
                (0..count).map(time).collect::<Result<_, _>>().ok()?;
            if is_told() {
                say(format!("{self}: algorithms of cuBLASLt take {} us", trial::told(&times)));
            }
            if let Some(number) = trial::fastest(&times) {
                return Some(first + number);
            }
            first += count;
        }
        None
    }

    /// Makes the product.
    pub(super) fn run(&self, stream: &mut Stream, site: &Site<'_>) -> Result<(), Cause> {
        let places = self.places(stream, site);
        let mut way = self.way(self.taken.get());
        while let Some((one, algorithm)) = way {
            let multiplier = self.shared.multiplier().map_err(|e| Cause::Device(e.to_string()))?;
            let Err(refusal) = stream.multiply(multiplier, (&one.described, algorithm), places)?
            else {
                break;
            };
            self.taken.set(self.taken.get() + 1);
            way = self.way(self.taken.get());
            say(format!(
                "cuBLASLt refuses {self} by an algorithm that it gave: {refusal}; it is made {}",
                self.way_taken()
            ));
        }
        let Some((kernels, make)) = self.kernels(way) else { return Ok(()) };
        let loaded = self.loaded(kernels, make).map_err(Cause::Device)?;
        loaded.iter().try_for_each(|(loaded, arguments)| site.launch(stream, *loaded, arguments))
    }

    /// The kernels of a way, behind the library's or in its place, and what they are made by.
    fn kernels(&self, way: Option<(&OfLibrary, usize)>) -> Option<(&Kernels, Make)> {
        match way {
            Some((one, _)) if one.whole => None,
            Some(_) => Some((&self.end, product_end)),
            None => Some((&self.own, own_product)),
        }
    }

    fn loaded<'k>(
        &self,
        kernels: &'k Kernels,
        make: Make,
    ) -> Result<&'k [(Loaded, Vec<Argument>)], String> {
        if kernels.get().is_none() {
            let loaded = load(&self.shared, make(&self.product))?;
            let _ = kernels.set(loaded);
        }
        Ok(kernels.get().map(Vec::as_slice).unwrap_or_default())
    }

    /// The way that is taken, for a message.
    fn way_taken(&self) -> String {
        match self.way(self.taken.get()) {
            None => "by a kernel of graphc's own".to_owned(),
            Some((one, number)) => {
                let (number, count) = (number + 1, one.described.algorithms());
                let end = if one.whole { "" } else { ", with a kernel for what stands behind it" };
                format!("by algorithm {number} of {count} of cuBLASLt{end}")
            }
        }
    }

    fn places(&self, stream: &Stream, site: &Site<'_>) -> Factors {
        let Product { operands, epilogue, .. } = &self.product;
        let address = |place| site.address(place, stream);
        let [a, b, out] = [operands.a, operands.b, operands.out].map(address);
        let sums = epilogue.sums.map(|(_, place)| place);
        let [added, vector, kept] =
            [epilogue.added, epilogue.bias.or(sums), epilogue.kept].map(|p| p.map(address));
        Factors { a, b, out, added, vector, kept }
    }
}

/// The descriptions of a product that the library has an algorithm for.
fn describe(multiplier: &Multiplier, product: &Product) -> Vec<OfLibrary> {
    let describe = |product: &Product, whole| {
        let described = multiplier.describe(product).ok()?;
        Some(OfLibrary { described, whole })
    };
    let plain = product.without_epilogue();
    let ended = if plain == *product { None } else { describe(&plain, false) };
    describe(product, true).into_iter().chain(ended).collect()
}

fn load(shared: &Shared, launches: Vec<Launch>) -> Result<Vec<(Loaded, Vec<Argument>)>, String> {
    let kernel = |launch| match launch {
        Launch::Kernel(kernel) => Some(kernel),
        Launch::Product(_) | Launch::Clear { .. } | Launch::Copy { .. } => None,
    };
    let kernels = launches.into_iter().filter_map(kernel);
    kernels.map(|kernel| Ok((shared.load_at_once(&kernel)?, kernel.arguments))).collect()
}

/// For messages.
impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Product { rows, inner, columns, batch, ref operands, ref epilogue, .. } = self.product;
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

/// Says something on standard error, once in a process.
fn say(text: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(text.clone()) {
        eprintln!("graphc: {text}");
    }
}

/// Whether it is said how products are made.
fn is_told() -> bool {
    std::env::var(VARIABLE).is_ok_and(|text| text == "1")
}
