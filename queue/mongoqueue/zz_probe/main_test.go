package p
import ("testing";"context";"fmt";"time"
"go.mongodb.org/mongo-driver/v2/bson"
"go.mongodb.org/mongo-driver/v2/mongo"
"go.mongodb.org/mongo-driver/v2/mongo/options"
"github.com/fencepost/fencepost/internal/mongotest"
)
func Test(t *testing.T){
 db:=mongotest.Database(t); c:=db.Collection("m"); ctx:=context.Background()
 c.InsertOne(ctx,bson.D{{"_id","k3"}})
 _,err:=c.InsertMany(ctx,[]any{bson.D{{"_id","k1"}},bson.D{{"_id","k2"}},bson.D{{"_id","k3"}},bson.D{{"_id","k4"}}})
 fmt.Printf("%T %v\n",err,err)
 var bw mongo.BulkWriteException
 if e,ok:=err.(mongo.BulkWriteException);ok{bw=e; fmt.Println(bw.WriteErrors[0].Index,bw.WriteErrors[0].Code,len(bw.WriteErrors))}
 n,_:=c.CountDocuments(ctx,bson.D{}); fmt.Println("count",n)
 var hello bson.M
 fmt.Println(db.Client().Database("admin").RunCommand(ctx,bson.D{{"hello",1}}).Decode(&hello),hello)
 _,err=c.InsertOne(ctx,bson.D{{"_id","big"},{"b",make([]byte,16<<20)}}); fmt.Println("big:",err)
 _,err=c.InsertOne(ctx,bson.D{{"_id","d"},{"h",bson.D{{"$a","b"},{"a.b","c"}}}}); fmt.Println("dollar:",err)
 _,err=c.InsertOne(ctx,bson.D{{"_id","d2"},{"h",bson.D{{"a.b","c"}}}}); fmt.Println("dot:",err)
 var r bson.M; c.FindOne(ctx,bson.D{{"_id","d2"}}).Decode(&r); fmt.Println(r)
 _,err=c.InsertMany(ctx,[]any{bson.D{{"_id","x1"}},bson.D{{"_id",bson.A{1}}},bson.D{{"_id","x2"}}}); fmt.Printf("array id: %T %v\n",err,err)
 _,err=c.InsertOne(ctx,bson.D{{"_id","é\xff"}}); fmt.Println("bad utf8:",err)
 cl,err:=mongo.Connect(options.Client().ApplyURI("mongodb://u:secretpw@127.0.0.1:27117/?directConnection=true").SetServerSelectionTimeout(2*time.Second))
 fmt.Println(err); err=cl.Database("x").RunCommand(ctx,bson.D{{"hello",1}}).Err(); fmt.Printf("%T %v\n",err,err)
 var ex bson.M
 err=db.RunCommand(ctx,bson.D{{"explain",bson.D{{"find","m"},{"filter",bson.D{{"_id",bson.D{{"$gt","k/"},{"$lt","k0"}}}}},{"sort",bson.D{{"_id",1}}},{"limit",10}}}}).Decode(&ex); fmt.Println(err, ex)
}
