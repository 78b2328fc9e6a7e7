// The words that contexts (contexts.h) are made of. None has a digit, so that numbers in a text are answers.
#pragma once

#include <array>
#include <string_view>

namespace allot::evaluation::ruler {

inline constexpr auto kRoles = std::to_array<std::string_view>(
    {"gardener", "carpenter", "teacher",  "sailor",     "baker",   "librarian", "painter",    "mason",
     "weaver",   "nurse",     "farmer",   "tailor",     "postman", "miller",    "clerk",      "shepherd",
     "musician", "potter",    "surveyor", "fisherman",  "cook",    "printer",   "glazier",    "beekeeper",
     "ferryman", "actor",     "botanist", "bus driver", "cobbler", "locksmith", "watchmaker", "singer",
     "engineer", "forester",  "merchant", "student",    "doctor",  "caretaker", "roofer",     "saddler"});

inline constexpr auto kDeeds = std::to_array<std::string_view>(
    {"mended",    "carried",      "sold",         "painted",    "found",        "lent out",
     "cleaned",   "measured",     "sketched",     "borrowed",   "counted",      "wrapped",
     "lost",      "described",    "weighed",      "hid",        "bought",       "washed",
     "polished",  "sorted",       "packed",       "repaired",   "kept",         "gave away",
     "put aside", "brought back", "asked about",  "took apart", "shared",       "wrote about",
     "covered",   "unwrapped",    "labelled",     "traded",     "photographed", "inspected",
     "set down",  "looked after", "searched for", "dusted"});

inline constexpr auto kThings = std::to_array<std::string_view>(
    {"a wooden ladder",      "a basket of pears",     "the copper kettle",   "an old map",
     "a coil of rope",       "the broken chair",      "a jar of honey",      "some blue tiles",
     "a bundle of letters",  "the garden gate",       "a sack of flour",     "a brass telescope",
     "the kitchen table",    "a pair of boots",       "a tin of nails",      "the church bell",
     "a roll of canvas",     "the rowing boat",       "a box of candles",    "a bicycle wheel",
     "some woollen socks",   "the winter curtains",   "a sheet of glass",    "a pot of glue",
     "the spare oars",       "a folded umbrella",     "a crate of apples",   "the stone bench",
     "a leather satchel",    "some clay pots",        "the attic window",    "a book of recipes",
     "a silver thimble",     "the lighthouse lamp",   "a loaf of rye bread", "a wicker chair",
     "some dried lavender",  "the puppet theatre",    "a barrel of vinegar", "an iron stove",
     "a painted sign",       "the harbour ledger",    "a woven carpet",      "an empty bird cage",
     "some polished stones", "the railway timetable", "a bottle of ink",     "an oak cupboard"});

inline constexpr auto kPlaces = std::to_array<std::string_view>({"behind the old mill",
                                                                 "near the harbour",
                                                                 "on the market square",
                                                                 "under the stone bridge",
                                                                 "beside the canal",
                                                                 "in the back yard",
                                                                 "at the edge of the wood",
                                                                 "on the upper floor",
                                                                 "in front of the town hall",
                                                                 "along the river path",
                                                                 "by the railway station",
                                                                 "in a narrow lane",
                                                                 "outside the bakery",
                                                                 "at the top of the hill",
                                                                 "next to the school",
                                                                 "in the walled garden",
                                                                 "across from the post office",
                                                                 "below the castle",
                                                                 "in the empty theatre",
                                                                 "at the ferry landing",
                                                                 "between two warehouses",
                                                                 "on the village green",
                                                                 "in the cellar",
                                                                 "beyond the last house",
                                                                 "among the apple trees",
                                                                 "on the way to the coast",
                                                                 "in the reading room",
                                                                 "at the crossroads",
                                                                 "beneath the clock tower",
                                                                 "in the boat house",
                                                                 "on a wide meadow",
                                                                 "inside the greenhouse"});

inline constexpr auto kTimes = std::to_array<std::string_view>({"before sunrise",
                                                                "on a rainy afternoon",
                                                                "late in the evening",
                                                                "during the harvest",
                                                                "after the storm",
                                                                "early in spring",
                                                                "at noon",
                                                                "on the first cold day",
                                                                "while the shops were closed",
                                                                "during the fair",
                                                                "in the quiet hour after lunch",
                                                                "once the fog had lifted",
                                                                "shortly before midnight",
                                                                "on a windy morning",
                                                                "at the end of the week",
                                                                "when the snow had melted",
                                                                "between two showers",
                                                                "in the last days of summer",
                                                                "as the lamps were lit",
                                                                "on a holiday",
                                                                "after a long winter",
                                                                "while it was still dark",
                                                                "in the middle of the week",
                                                                "when the ferry was late"});

// Of the names of things that have numbers: "amber-lantern".
inline constexpr auto kQualities = std::to_array<std::string_view>(
    {"amber",   "ancient", "bitter",  "brisk",     "broad",   "calm",   "careful", "cheerful", "clever",
     "crooked", "dapper",  "distant", "dusty",     "eager",   "early",  "faint",   "famous",   "fragile",
     "gentle",  "gilded",  "golden",  "hollow",    "humble",  "idle",   "ivory",   "jolly",    "keen",
     "lively",  "lonely",  "mellow",  "misty",     "modest",  "narrow", "nimble",  "patient",  "placid",
     "polite",  "proud",   "quaint",  "quiet",     "rapid",   "rustic", "sandy",   "scarlet",  "secret",
     "shaded",  "silent",  "simple",  "sleepy",    "slender", "smooth", "solemn",  "sturdy",   "sudden",
     "tender",  "velvet",  "violet",  "wandering", "weary",   "yellow"});

inline constexpr auto kNouns = std::to_array<std::string_view>(
    {"anchor",  "anvil",  "badger",  "balcony",  "barrow",  "beacon",  "blanket", "bonnet",   "bridge",
     "bucket",  "button", "cabinet", "candle",   "canyon",  "cellar",  "chimney", "compass",  "cottage",
     "curtain", "dagger", "drummer", "engine",   "falcon",  "feather", "fiddle",  "fountain", "galley",
     "glacier", "hammer", "harvest", "hedgehog", "helmet",  "island",  "kettle",  "ladder",   "lantern",
     "locket",  "marble", "meadow",  "mirror",   "needle",  "orchard", "otter",   "pebble",   "pillow",
     "pocket",  "quarry", "ribbon",  "saddle",   "sparrow", "spindle", "temple",  "thicket",  "tractor",
     "tunnel",  "turnip", "valley",  "wagon",    "walnut",  "windmill"});

inline constexpr auto kCrafts = std::to_array<std::string_view>(
    {"weaving",       "glass blowing", "bookbinding",   "clock repair",  "boat building",
     "stone carving", "cheese making", "map drawing",   "candle making", "bell founding",
     "basketry",      "dyeing",        "violin making", "tanning",       "thatching",
     "engraving",     "bread baking",  "wood turning",  "tile painting", "rope making"});

// How names of towns end.
inline constexpr auto kTownEnds =
    std::to_array<std::string_view>({"ford", "mere", "stad", "holm", "wick", "burg", "dale", "port", "haven",
                                     "field", "mouth", "bridge", "bach", "rode", "thorpe", "beck"});

inline constexpr std::string_view kConsonants = "bdfghjklmnprstvz";
inline constexpr std::string_view kVowels = "aeiou";

}  // namespace allot::evaluation::ruler
