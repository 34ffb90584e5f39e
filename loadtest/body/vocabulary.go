package body

// The words that bodies are made of. Each property and attribute has one kind of value, and each event name its own
// sequence of properties, as in the traffic of real apps: a server sees few shapes, many times.

type valueKind uint8

const (
	text valueKind = iota
	word
	integer
	money
	boolean
	datetime
	list
	object
	url
)

type field struct {
	name string
	kind valueKind
}

var eventNames = []string{
	"Page Viewed", "Product Viewed", "Product List Viewed", "Add to Cart", "Remove from Cart", "Checkout Started",
	"Order Placed",
	"Order Cancelled", "Search Submitted", "Sign In Completed", "Sign Up Completed", "Coupon Applied", "Video Started",
	"Video Completed", "Article Read", "Push Opened", "Review Written", "Wishlist Updated",
	"Store Located", "App Opened", "Trial Started", "Plan Upgraded", "Invite Sent", "Support Contacted",
}

var properties = []field{
	{"source", word}, {"path", url}, {"category", word}, {"position", integer}, {"title", text}, {"order_id", word},
	{"subtotal", money}, {"coupon_used", boolean}, {"brand", word}, {"duration_ms", integer}, {"referrer", url},
	{"variant", word},
	{"checkout_step", integer}, {"is_first_time", boolean}, {"list_name", text}, {"discount", money},
	{"delivered_at", datetime},
	{"tags", list}, {"search_term", text}, {"shipping", object}, {"rating", integer}, {"store", text}, {"tax", money},
}

var customAttributes = []field{
	{"loyalty_tier", word}, {"lifetime_value", money}, {"last_seen_at", datetime}, {"visit_count", integer},
	{"wants_newsletter", boolean},
	{"favorite_category", word}, {"favorite_brands", list}, {"company", text}, {"job_title", text},
	{"cart_value", money},
	{"trial_ends_at", datetime}, {"has_app", boolean}, {"devices", integer}, {"signup_source", word},
	{"landing_page", url},
	{"preferred_store", text}, {"score", integer},
}

var words = []string{
	"shoes", "garden", "kitchen", "outdoor", "premium", "summer", "email", "organic", "mobile", "gold", "silver",
	"electronics",
	"checkout", "homepage", "banner", "books", "travel", "express", "sports", "returning",
}

var texts = []string{
	"Trail running shoes for women", "Autumn sale: second pair at half price", "Cast iron pan 28 cm",
	"Weekend in the mountains",
	"Wireless headphones with case", "How to repot a monstera", "Noise in the city, quiet at home",
	"Main street 12, first floor",
	"Senior product manager", "Nordic Lights Trading", "Waterproof jacket, dark green", "Coffee beans, whole, 1 kg",
}

var unicodeTexts = []string{
	"Café Zürich, gleich am Fluß", "東京タワーの夜景ツアー", "Зимняя распродажа до пятницы", "Señal de niño: ¡último día!",
	"مرحبا بكم في المتجر",
	"Ζεστός καφές 🫖 και βιβλία", "한정판 운동화 사전 예약", "Crème brûlée 👩🏽‍🍳 for two",
}

// escapedTexts are written as they are between quotes.
var escapedTexts = []string{
	`Monitor 27\" with stand`, `C:\\photos\\2026\\summer`, `first line\nsecond line\tend`, `caf\u00e9 au lait`,
	`a smile \ud83d\ude00 in escapes`,
	`https:\/\/shop.example.com\/sale`, `\u65e5\u672c\u8a9e text`,
}

var (
	firstNames = []string{"Ada", "Bram", "Chen", "Dalia", "Emeka", "Farah", "Goran", "Hana", "Ines", "Jonas", "Kiri",
		"Lucía", "Mateo", "Noor", "Olga", "Pavel"}
	lastNames = []string{"Okafor", "Lindqvist", "Marino", "Novak", "Ortega", "Petrov", "Quinn", "Rossi", "Schäfer",
		"Tanaka", "Usman", "Vasquez", "Weber", "Yilmaz"}
	cities = []string{"Berlin", "Lisbon", "Osaka", "Toronto", "Nairobi", "Chicago", "Lyon",
		"São Paulo", "Oslo", "Pune"}
	countries = []string{"DE", "PT", "JP", "CA", "KE", "US", "FR", "BR", "NO", "IN"}
	languages = []string{"de", "pt", "ja", "en", "sw", "fr", "no", "hi", "es"}
	timeZones = []string{"Europe/Berlin", "America/New_York", "Asia/Tokyo", "America/Sao_Paulo", "Africa/Nairobi",
		"Asia/Kolkata"}
	genders = []string{"M", "F", "O", "N", "P"}
	pages   = []string{"/", "/sale", "/product", "/cart", "/search", "/account/orders", "/blog/autumn"}
)

// The rules that a refused object breaks, by array. Each is written by the method of its array in body.go.
var refusals = [numArrays][]string{
	Attributes: {"no identifier", "two identifiers", "email invalid", "email_subscribe invalid", "external_id too long",
		"duplicate member"},
	Events: {"no identifier", "two identifiers", "name missing", "name not a string", "time missing", "time invalid",
		"dollar property", "reserved property",
		"long property text", "null property"},
	Purchases: {"no identifier", "product_id missing", "currency invalid", "price missing", "price not a number",
		"quantity zero", "quantity over 100", "time invalid",
		"reserved property"},
}
