"""The words that the demo texts are built from."""

LANGUAGES = ("English", "German", "French", "Spanish", "Chinese", "Japanese", "Russian", "Greek", "Arabic", "Hindi")

# One row a word, in the order of LANGUAGES.
DICTIONARY = tuple(
    tuple(row.split())
    for row in """
water Wasser eau agua 水 水 вода νερό ماء पानी
bread Brot pain pan 面包 パン хлеб ψωμί خبز रोटी
house Haus maison casa 房子 家 дом σπίτι بيت घर
book Buch livre libro 书 本 книга βιβλίο كتاب किताब
tree Baum arbre árbol 树 木 дерево δέντρο شجرة पेड़
river Fluss rivière río 河 川 река ποτάμι نهر नदी
sun Sonne soleil sol 太阳 太陽 солнце ήλιος شمس सूरज
moon Mond lune luna 月亮 月 луна φεγγάρι قمر चाँद
cat Katze chat gato 猫 猫 кошка γάτα قطة बिल्ली
dog Hund chien perro 狗 犬 собака σκύλος كلب कुत्ता
bird Vogel oiseau pájaro 鸟 鳥 птица πουλί طائر पक्षी
fish Fisch poisson pez 鱼 魚 рыба ψάρι سمكة मछली
milk Milch lait leche 牛奶 牛乳 молоко γάλα حليب दूध
salt Salz sel sal 盐 塩 соль αλάτι ملح नमक
stone Stein pierre piedra 石头 石 камень πέτρα حجر पत्थर
star Stern étoile estrella 星星 星 звезда αστέρι نجمة तारा
door Tür porte puerta 门 ドア дверь πόρτα باب दरवाज़ा
window Fenster fenêtre ventana 窗户 窓 окно παράθυρο نافذة खिड़की
city Stadt ville ciudad 城市 都市 город πόλη مدينة शहर
friend Freund ami amigo 朋友 友達 друг φίλος صديق दोस्त
morning Morgen matin mañana 早上 朝 утро πρωί صباح सुबह
night Nacht nuit noche 夜晚 夜 ночь νύχτα ليل रात
sea Meer mer mar 海 海 море θάλασσα بحر समुद्र
mountain Berg montagne montaña 山 山 гора βουνό جبل पहाड़
apple Apfel pomme manzana 苹果 りんご яблоко μήλο تفاحة सेब
flower Blume fleur flor 花 花 цветок λουλούδι زهرة फूल
""".strip().splitlines()
)

OPPOSITES = (
    ("wide", "narrow"), ("early", "late"), ("rough", "smooth"), ("empty", "full"), ("ancient", "modern"),
    ("shallow", "deep"), ("bright", "dim"), ("loose", "tight"), ("generous", "mean"), ("scarce", "plentiful"),
    ("brave", "timid"), ("calm", "restless"), ("sharp", "blunt"), ("hollow", "solid"), ("rare", "common"),
)  # fmt: skip

PEOPLE = (
    "Amara", "Bogdan", "Chidi", "Dilnoza", "Edda", "Farid", "Greta", "Hana", "Ivo", "Jelena", "Kwame", "Lucía",
    "Mirek", "Noor", "Oluf", "Priya", "Quirin", "Rosa", "Sanjay", "Tove", "Umar", "Vesna", "Wen", "Yara", "Zoltán",
)  # fmt: skip

TRADES = (
    "beekeeper", "bookbinder", "clock mender", "ferry pilot", "glass blower", "lighthouse keeper", "map maker",
    "night baker", "fruit grower", "piano tuner", "rope maker", "shepherd", "tram driver", "violin maker",
)  # fmt: skip

PLACES = (
    "a harbour town", "a valley of terraced fields", "a village at the edge of a salt marsh", "an island without roads",
    "an old quarter behind the station", "the last stop of a mountain railway", "a street of narrow brick houses",
    "a farm on the high plain", "a fishing hamlet", "a city built over canals",
)  # fmt: skip

THINGS = (
    "brass key", "blue kettle", "cracked bell", "folded letter", "jar of seeds", "lantern", "music box", "worn atlas",
    "pocket mirror", "red scarf", "silver whistle", "wooden boat", "tin of buttons", "half-sewn quilt",
)  # fmt: skip

GOODS = (
    "apples", "candles", "notebooks", "bricks", "tickets", "marbles", "pencils", "eggs", "tiles", "postcards",
    "seedlings",
)  # fmt: skip

WEATHER = (
    "It had rained since dawn.", "Fog lay over the water.", "The wind smelled of snow.",
    "The heat had not broken for weeks.", "A thin sun came through the clouds.",
    "The first frost had whitened the roofs.", "It was the longest day of the year.",
)  # fmt: skip

CITIES = (
    "Porto", "Tartu", "Oaxaca", "Busan", "Kumasi", "Graz", "Hobart", "Mysuru", "Izmir", "Halifax", "Bergen", "Cusco",
)  # fmt: skip
