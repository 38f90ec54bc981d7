//! The public API, as a skeleton of the source in `tests/api.txt`, so that a change of it is seen in
//! review. `REPRISE_API=write cargo test --test project` writes the file anew.
//!
//! All `pub` items count: a lint of the crate (`unreachable_pub`) sees to it that there are no
//! others than those that users can reach.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use syn::{
    Attribute, Fields, File, Generics, Ident, ImplItem, Item, ItemImpl, Type, Visibility,
    parse::ParseStream, punctuated::Punctuated,
};

#[test]
fn the_public_api_is_the_one_on_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("tests/api.txt");
    let api = skeleton(&root.join("src"));
    if env::var("REPRISE_API").as_deref() == Ok("write") {
        fs::write(&file, &api).unwrap();
    }
    let known = fs::read_to_string(&file).unwrap_or_default();
    let changed = api
        .lines()
        .zip(known.lines())
        .find(|(now, then)| now != then);
    assert!(
        api == known,
        "the public API changed, first at {changed:?}; if that is meant: \
         REPRISE_API=write cargo test --all-features --test project"
    );
}

fn skeleton(src: &Path) -> String {
    let mut files = Vec::new();
    find(src, &mut files);
    // Programs have no API in Rust.
    files.retain(|path| !path.starts_with(src.join("bin")));
    files.sort();
    let parse = |path: &PathBuf| {
        let mut file = syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap();
        file.items.iter_mut().for_each(expand);
        file
    };
    let parsed: Vec<_> = files.iter().map(parse).collect();
    let types: BTreeSet<_> = parsed
        .iter()
        .flat_map(|file| file.items.iter().filter_map(name))
        .collect();
    let mut text = String::new();
    for (path, file) in files.iter().zip(&parsed) {
        let items = file.items.iter().filter(|item| concerns(item, &types));
        let items: Vec<_> = items.cloned().filter_map(public).collect();
        if items.is_empty() {
            continue;
        }
        let name = path.strip_prefix(src).unwrap().display().to_string();
        text += &format!("// {}\n", name.replace(".rs", "").replace("/mod", ""));
        text += &prettyplease::unparse(&File {
            shebang: None,
            attrs: Vec::new(),
            items,
        });
        text.push('\n');
    }
    text
}

/// Replaces an `opaque_debug!` by the impl that it makes.
fn expand(item: &mut Item) {
    let Item::Macro(of_macro) = item else { return };
    if !of_macro.mac.path.is_ident("opaque_debug") {
        return;
    }
    let parse = |input: ParseStream<'_>| {
        input.call(Attribute::parse_outer)?;
        let (name, generics): (Ident, Generics) = (input.parse()?, input.parse()?);
        input.step(|cursor| {
            let mut rest = *cursor;
            while let Some((_, next)) = rest.token_tree() {
                rest = next;
            }
            Ok(((), rest))
        })?;
        let (bounds, arguments, _) = generics.split_for_impl();
        Ok(syn::parse_quote!(impl #bounds fmt::Debug for #name #arguments {}))
    };
    *item = Item::Impl(of_macro.mac.parse_body_with(parse).unwrap());
}

/// The name of a public type or trait.
fn name(item: &Item) -> Option<String> {
    match public(item.clone())? {
        Item::Enum(item) => Some(item.ident.to_string()),
        Item::Struct(item) => Some(item.ident.to_string()),
        Item::Trait(item) => Some(item.ident.to_string()),
        Item::Type(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

/// Whether an item is no impl, or one of a public type.
fn concerns(item: &Item, types: &BTreeSet<String>) -> bool {
    let Item::Impl(item) = item else { return true };
    let Type::Path(path) = &*item.self_ty else {
        return false;
    };
    let last = path.path.segments.last();
    last.is_some_and(|last| types.contains(&last.ident.to_string()))
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Returns an item as users see it, without bodies, docs and private fields.
fn public(item: Item) -> Option<Item> {
    let is_pub = |vis: &Visibility| matches!(vis, Visibility::Public(_));
    Some(match item {
        Item::Const(mut item) if is_pub(&item.vis) => {
            keep_cfg(&mut item.attrs);
            item.expr = Box::new(syn::parse_quote!(_));
            Item::Const(item)
        }
        Item::Enum(mut item) if is_pub(&item.vis) => {
            keep_cfg(&mut item.attrs);
            item.variants.iter_mut().for_each(|variant| {
                keep_cfg(&mut variant.attrs);
                variant
                    .fields
                    .iter_mut()
                    .for_each(|field| keep_cfg(&mut field.attrs));
            });
            Item::Enum(item)
        }
        Item::Fn(mut item) if is_pub(&item.vis) => {
            keep_cfg(&mut item.attrs);
            item.block = Box::new(syn::parse_quote!({}));
            Item::Fn(item)
        }
        Item::Struct(mut item) if is_pub(&item.vis) => {
            keep_cfg(&mut item.attrs);
            hide_private(&mut item.fields);
            Item::Struct(item)
        }
        Item::Trait(mut item) if is_pub(&item.vis) => {
            keep_cfg(&mut item.attrs);
            for item in &mut item.items {
                match item {
                    syn::TraitItem::Fn(function) => {
                        keep_cfg(&mut function.attrs);
                        if function.default.is_some() {
                            function.default = Some(syn::parse_quote!({}));
                        }
                    }
                    syn::TraitItem::Type(item) => keep_cfg(&mut item.attrs),
                    _ => {}
                }
            }
            Item::Trait(item)
        }
        Item::Type(mut item) if is_pub(&item.vis) => {
            keep_cfg(&mut item.attrs);
            Item::Type(item)
        }
        Item::Use(mut item) if is_pub(&item.vis) => {
            keep_cfg(&mut item.attrs);
            Item::Use(item)
        }
        Item::Mod(mut item) if is_pub(&item.vis) => {
            keep_cfg(&mut item.attrs);
            item.content = None;
            item.semi = Some(Default::default());
            Item::Mod(item)
        }
        Item::Impl(item) => return methods(item).map(Item::Impl),
        // An item inside of `pin_project!`.
        Item::Macro(mut item) if item.mac.path.is_ident("pin_project") => {
            keep_cfg(&mut item.attrs);
            let inner: Item = syn::parse2(item.mac.tokens.clone()).ok()?;
            return public(inner);
        }
        _ => return None,
    })
}

/// The public functions of an inherent impl, or the fact of a trait's.
fn methods(mut item: ItemImpl) -> Option<ItemImpl> {
    keep_cfg(&mut item.attrs);
    if item.trait_.is_some() {
        item.items.retain(|item| matches!(item, ImplItem::Type(_)));
        return Some(item);
    }
    item.items.retain_mut(|item| match item {
        ImplItem::Fn(function) if matches!(function.vis, Visibility::Public(_)) => {
            keep_cfg(&mut function.attrs);
            function.block = syn::parse_quote!({});
            true
        }
        ImplItem::Const(constant) if matches!(constant.vis, Visibility::Public(_)) => {
            keep_cfg(&mut constant.attrs);
            constant.expr = syn::parse_quote!(_);
            true
        }
        _ => false,
    });
    (!item.items.is_empty()).then_some(item)
}

/// Attributes that a user's code depends on.
fn keep_cfg(attributes: &mut Vec<Attribute>) {
    attributes.retain(|attribute| {
        ["cfg", "derive", "must_use", "non_exhaustive", "deprecated"]
            .iter()
            .any(|name| attribute.path().is_ident(name))
    });
}

fn hide_private(fields: &mut Fields) {
    let public = |vis: &Visibility| matches!(vis, Visibility::Public(_));
    match fields {
        Fields::Named(fields) => {
            let named = std::mem::take(&mut fields.named);
            fields.named = named
                .into_iter()
                .filter(|field| public(&field.vis))
                .collect();
            fields
                .named
                .iter_mut()
                .for_each(|field| keep_cfg(&mut field.attrs));
        }
        Fields::Unnamed(fields) if !fields.unnamed.iter().all(|field| public(&field.vis)) => {
            fields.unnamed = Punctuated::new();
        }
        _ => {}
    }
}
